"""The type of each document of ``--json``.

A document that is a class of results is described by the class. Where a renderer joins several, the
fields are declared here; the tests hold every output to them. ``Annotated[A, B]`` has the fields of
both, and ``A | B`` is either. A module here has the commands of one heading of ``--help``; those
of ``ci`` and ``trust`` have their own.
"""

from typing import Annotated, Any

from jaxcache.cache.ci.key import CiKey
from jaxcache.cache.doctor.bug_report import BugReport, Versions
from jaxcache.cache.doctor.run_checks import Diagnosis
from jaxcache.cache.ledger.segments import Uses
from jaxcache.cache.listing import Listing
from jaxcache.cache.seal import SealResult
from jaxcache.cache.show import EntryDetails, KernelCacheDetails
from jaxcache.cache.stats import Stats
from jaxcache.layouts.torch.explain import GraphDetails
from jaxcache.warm.crosshost.compare import TargetCheck
from jaxcache.warm.report.report import Report
from jaxcache.warm.torch.run import TorchReport
from tools.generate.documents.ci import CiRestoreDocument, CiSaveDocument
from tools.generate.documents.diagnose import (
    ChurnDocument,
    DiffDocument,
    ExplainDocument,
    WhereDocument,
)
from tools.generate.documents.fill import (
    CompileDocument,
    Placed,
    ProfileDocument,
)
from tools.generate.documents.look import (
    Grouped,
    RecipeDocument,
    ReportFile,
    SeveralEntries,
    StatsMore,
)
from tools.generate.documents.maintain import (
    Pinned,
    PruneDocument,
    RestoreDocument,
    Sealing,
    Unpinned,
    VerifyDocument,
)
from tools.generate.documents.move import ExportDocument, ImportDocument, SyncDocument
from tools.generate.documents.shared import ErrorDocument
from tools.generate.documents.trust import TrustDocument

ERROR = ErrorDocument
_RUN = Annotated[Report, Placed] | Annotated[TorchReport, Placed]
#: By command; ``version`` is of ``jaxcache --version --json``.
DOCUMENTS: dict[str, Any] = {
    "ls": Annotated[Listing, Grouped] | RecipeDocument,
    "show": EntryDetails | GraphDetails | SeveralEntries | KernelCacheDetails | RecipeDocument,
    "stats": Annotated[Stats, Uses, StatsMore],
    "report": ReportFile,
    "warm": _RUN,
    "run": _RUN,
    "compile": CompileDocument,
    "target check": TargetCheck,
    "target show": ProfileDocument,
    "explain": ExplainDocument | ChurnDocument,
    "doctor": Diagnosis,
    "where": WhereDocument,
    "diff": DiffDocument,
    "bug-report": BugReport,
    "verify": VerifyDocument | RestoreDocument,
    "seal": Annotated[SealResult, Sealing],
    "prune": PruneDocument,
    "rm": PruneDocument,
    "pin": Pinned | Unpinned,
    "export": ExportDocument,
    "import": ImportDocument,
    **dict.fromkeys(("push", "pull", "copy"), ExportDocument | ImportDocument | SyncDocument),
    "ci key": CiKey,
    "ci restore": CiRestoreDocument,
    "ci save": CiSaveDocument,
    **dict.fromkeys(
        ("trust here", "trust keygen", "trust add", "trust list", "trust remove"), TrustDocument
    ),
    "version": Versions,
}
