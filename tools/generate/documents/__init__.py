"""The type of each document of ``--json``.

A document that is a class of results is described by the class. Where a renderer joins several, the
fields are declared here; the tests hold every output to them. ``Annotated[A, B]`` has the fields of
both, and ``A | B`` is either. A module here has the commands of one heading of ``--help``; those
of ``ci`` and ``trust`` have their own.
"""

from typing import Annotated, Any

from jaxcache.cache.doctor.bug_report import BugReport, Versions
from jaxcache.cache.ledger.segments import Uses
from jaxcache.cache.listing import Listing
from jaxcache.cache.show import EntryDetails
from jaxcache.cache.stats import Stats
from jaxcache.warm.crosshost.compare import TargetCheck
from tools.generate.documents.ci import CiKeyDocument, CiRestoreDocument, CiSaveDocument
from tools.generate.documents.diagnose import (
    ChurnDocument,
    DiffDocument,
    DoctorDocument,
    ExplainDocument,
    WhereDocument,
)
from tools.generate.documents.fill import (
    CompileDocument,
    ProfileDocument,
    RunDocument,
    TorchRunDocument,
)
from tools.generate.documents.look import (
    GraphBody,
    Grouped,
    KernelsDocument,
    RecipeDocument,
    ReportFile,
    SeveralEntries,
    StatsMore,
)
from tools.generate.documents.maintain import (
    Pinned,
    PruneDocument,
    RestoreDocument,
    SealDocument,
    Unpinned,
    VerifyDocument,
)
from tools.generate.documents.move import ExportDocument, ImportDocument, SyncDocument
from tools.generate.documents.shared import ErrorDocument
from tools.generate.documents.trust import TrustDocument

ERROR = ErrorDocument
_RUN = RunDocument | TorchRunDocument
#: By command; ``version`` is of ``jaxcache --version --json``.
DOCUMENTS: dict[str, Any] = {
    "ls": Annotated[Listing, Grouped] | RecipeDocument,
    "show": EntryDetails | GraphBody | SeveralEntries | KernelsDocument | RecipeDocument,
    "stats": Annotated[Stats, Uses, StatsMore],
    "report": ReportFile,
    "warm": _RUN,
    "run": _RUN,
    "compile": CompileDocument,
    "target check": TargetCheck,
    "target show": ProfileDocument,
    "explain": ExplainDocument | ChurnDocument,
    "doctor": DoctorDocument,
    "where": WhereDocument,
    "diff": DiffDocument,
    "bug-report": BugReport,
    "verify": VerifyDocument | RestoreDocument,
    "seal": SealDocument,
    "prune": PruneDocument,
    "rm": PruneDocument,
    "pin": Pinned | Unpinned,
    "export": ExportDocument,
    "import": ImportDocument,
    **dict.fromkeys(("push", "pull", "copy"), ExportDocument | ImportDocument | SyncDocument),
    "ci key": CiKeyDocument,
    "ci restore": CiRestoreDocument,
    "ci save": CiSaveDocument,
    **dict.fromkeys(
        ("trust here", "trust keygen", "trust add", "trust list", "trust remove"), TrustDocument
    ),
    "version": Versions,
}
