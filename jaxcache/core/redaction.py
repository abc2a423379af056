"""Words of a command line that look secret."""

import re

#: Names of secret values; "tokenizer" and "max_tokens" do not match.
_SECRET = re.compile(
    r"(^|[-_.])(token|secret|passw(or)?d|passphrase|credentials?|auth(orization)?|bearer|"
    r"(api|access|private|secret|signing|encryption|account|license)[-_]?key|apikey)($|[-_.])",
    re.IGNORECASE,
)
_PASSWORD_IN_URL = re.compile(r"(?<=://)[^/@\s]*@")
#: Items of a URL's query that give access, as in presigned URLs of S3, GCS and Azure.
_SECRET_IN_QUERY = re.compile(
    r"(?i)(?<=[?&])([\w-]*(?:token|signature|credential|secret|password)|sig|(?:[\w-]*[-_])?key)"
    r"=[^&#\s]*"
)


def hide_secrets(arguments: "list[str]") -> "list[str]":
    """Replace the values of arguments that look secret: what is sent may end up in files."""
    shown = []
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        secret = bool(_SECRET.search(name.lstrip("-"))) and "/" not in name
        if hide_next and not argument.startswith("-"):
            shown.append("***")
        elif equals and secret:
            shown.append(f"{name}=***")
        else:
            shown.append(_SECRET_IN_QUERY.sub(r"\1=***", _PASSWORD_IN_URL.sub("***@", argument)))
        hide_next = secret and not equals and argument.startswith("-")
    return shown
