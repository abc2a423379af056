"""Which pairs of features have been run together, and by which test.

Every later feature adds its member of :class:`Feature`, its commands and its row.
"""

from dataclasses import dataclass
from enum import Enum
from itertools import combinations


class Feature(Enum):
    """What users combine: the features that README names, and the circumstances at the end."""

    WARM = "warm, run and explain"
    RECIPE = "recipes and --jobs"
    LIVE = "the live layer"
    TIER = "tiers"
    BUCKET = "buckets"
    BUNDLE = "bundles"
    SIGNATURES = "signatures"
    SEAL = "seal and verify"
    PRUNE = "prune, rm and pins"
    CI = "ci"
    PORTABLE = "portable keys"
    TORCH = "torch"
    CAP = "JAX's own cap on the size"
    VERSIONS = "two versions in one directory"
    USERS = "two users of one directory"
    NAMES = "odd names of directories and files"


#: The commands of each feature that change something.
COMMANDS = {
    Feature.WARM: {"warm", "run", "explain"},
    Feature.RECIPE: {"compile"},
    Feature.BUCKET: {"push", "pull"},
    Feature.BUNDLE: {"export", "import", "copy"},
    Feature.SIGNATURES: {"trust keygen", "trust add", "trust remove"},
    Feature.SEAL: {"verify", "seal"},
    Feature.PRUNE: {"prune", "rm", "pin"},
    Feature.CI: {"ci key", "ci restore", "ci save"},
}
#: Commands that change nothing in a cache.
VIEWS = {
    *("ls", "show", "stats", "report", "diff", "doctor", "where", "completion"),
    "bug-report",
    *("target capture", "target check", "target show", "trust here", "trust list"),
}


@dataclass(frozen=True, slots=True)
class Held:
    """Tests that run the pair; files are below ``tests``."""

    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Senseless:
    """A pair that nobody can combine, with the reason in one sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotYet:
    """A pair that no test runs, with what is known of it."""

    finding: str = ""


Cell = Held | Senseless | NotYet


def held(*tests: str) -> Held:
    """Make a cell of tests."""
    return Held(tests)


MOVE = "pairs/test_move_pairs.py::"
KEEP = "pairs/test_keep_pairs.py::"
PROGRAM = "pairs/test_program_pairs.py::"
JOBS_TO_TIER = f"{MOVE}test_what_warm_jobs_compiled_goes_to_the_tier"
RECIPE_IN_BUNDLE = f"{MOVE}test_what_a_recipe_compiled_moves_in_a_bundle"
LIVE_IN_BUNDLE = f"{MOVE}test_what_the_live_layer_wrote_goes_through_a_job_in_a_bundle"
JOB_TO_TIER = f"{MOVE}test_a_bundle_of_a_job_goes_on_to_a_tier"
ONLY_SIGNED = (
    "cli/test_move.py::test_only_what_a_trusted_key_has_signed_comes_where_that_is_required"
)
SIGNED_AND_CHANGED = f"{MOVE}test_signed_entries_stay_signed_when_they_are_sealed_and_pruned"
TURNS = f"{KEEP}test_two_versions_take_turns_in_one_directory"
COMPILED_UNDER_A_CAP = (
    f"{KEEP}test_jax_with_a_cap_goes_on_writing_where_a_recipe_was_compiled_and_pruned"
)
OTHER_TRAVELS = f"{KEEP}test_entries_of_another_version_are_no_damage_and_travel"
FILLED_BY_ROOT = f"{KEEP}test_what_root_fills_belongs_to_the_owner_of_an_odd_directory"
BESIDE_TORCH = f"{KEEP}test_torch_in_the_same_directory_is_left_alone"
ODD_TIER = f"{PROGRAM}test_an_odd_directory_with_the_live_layer_and_a_tier"
ODD_BUNDLE = f"{PROGRAM}test_an_odd_directory_in_a_bundle_of_an_odd_name"
OTHER_LAYOUT = "cli/test_opening.py::test_what_is_for_caches_of_jax_refuses_those_of_torch"
REFUSED_BY_TORCH = "warm/test_torch_report.py::test_options_of_jax_are_refused"
SHARED_WITH_JAX = (
    "integration/test_shared_with_jax.py::test_jax_hits_all_after_root_has_changed_a_cache"
)
ODD_RECIPE = f"{PROGRAM}test_an_odd_directory_with_a_recipe_and_a_cap_is_pushed_signed"
NO_LIVE_TORCH = Senseless("The live layer is in JAX's process, and torch's compilers do not use it")

F = Feature
ROWS: dict[Feature, dict[Feature, Cell]] = {
    F.WARM: {
        F.RECIPE: held("integration/test_oracle.py::test_plain_jax_hits_what_was_compiled_ahead"),
        F.LIVE: held(ODD_TIER),
        F.TIER: held(f"{MOVE}test_warm_jobs_fetches_from_the_tier_instead_of_compiling"),
        F.BUCKET: held(
            "integration/test_warm.py::test_plain_jax_hits_what_warm_has_put_into_a_bucket"
        ),
        F.BUNDLE: held(ODD_BUNDLE),
        F.SIGNATURES: Senseless("A run writes what this machine compiles, which nobody signs"),
        F.SEAL: held("integration/test_warm.py::test_the_second_run_is_all_hits"),
        F.PRUNE: held("integration/test_prune_jax.py::test_a_hit_in_the_ledger_is_the_last_use"),
        F.CI: held("integration/test_ci_jax.py::test_three_jobs"),
        F.PORTABLE: held(
            "integration/test_warm_options.py::test_portable_keys_hit_in_another_directory"
        ),
        F.TORCH: held("integration/test_torch_run.py::test_warm_turns_the_caches_on"),
        F.CAP: held("integration/test_warm_outcomes.py::test_what_holds_for_a_whole_program"),
        F.VERSIONS: held("integration/test_explain_jax.py::test_another_jaxlib"),
        F.USERS: NotYet("JAX itself writes the entries, so they belong to the user who runs warm"),
        F.NAMES: held(ODD_BUNDLE),
    },
    F.RECIPE: {
        F.LIVE: held(JOBS_TO_TIER),
        F.TIER: held(
            JOBS_TO_TIER, f"{MOVE}test_warm_jobs_fetches_from_the_tier_instead_of_compiling"
        ),
        F.BUCKET: held(f"{MOVE}test_a_recipe_is_compiled_into_a_bucket"),
        F.BUNDLE: held(RECIPE_IN_BUNDLE),
        F.SIGNATURES: Senseless("A recipe holds no executable, and its entries are signed later"),
        F.SEAL: held(
            "integration/test_compile_jax.py::test_one_command_collects_compiles_and_runs"
        ),
        F.PRUNE: held(COMPILED_UNDER_A_CAP),
        F.CI: held(f"{MOVE}test_a_job_that_compiles_a_recipe_saves_it"),
        F.PORTABLE: held(RECIPE_IN_BUNDLE),
        F.TORCH: held(REFUSED_BY_TORCH),
        F.CAP: held(COMPILED_UNDER_A_CAP),
        F.VERSIONS: held("integration/test_compile_jax.py::test_a_recipe_of_another_jax_says_so"),
        F.USERS: held(FILLED_BY_ROOT),
        F.NAMES: held(ODD_RECIPE),
    },
    F.LIVE: {
        F.TIER: held(
            "live/test_tiers.py::test_the_second_machine_hits_what_the_first_has_compiled"
        ),
        F.BUCKET: held("live/test_tiers.py::test_a_bucket_of_jax_is_a_tier"),
        F.BUNDLE: held(LIVE_IN_BUNDLE),
        F.SIGNATURES: held(
            f"{MOVE}test_the_live_layer_takes_what_push_signed_and_nothing_else",
            f"{MOVE}test_signed_uploads_of_the_live_layer_pass_pull_require_signed",
        ),
        F.SEAL: held("live/test_directory.py::test_a_seal_can_be_required"),
        F.PRUNE: held(
            "live/test_evictor.py::test_cost_takes_what_prune_takes",
            "live/test_evictor.py::test_cost_keeps_what_took_long_to_compile_and_pins_stay",
        ),
        F.CI: held(LIVE_IN_BUNDLE),
        F.PORTABLE: held(
            "live/test_tiers.py::test_the_second_machine_hits_what_the_first_has_compiled"
        ),
        F.TORCH: NO_LIVE_TORCH,
        F.CAP: held("live/test_layer.py::test_a_capped_jax_and_the_layer_disturb_neither"),
        F.VERSIONS: held(TURNS),
        F.USERS: held(
            "cli/test_shared_directory.py"
            "::test_members_can_write_to_all_that_a_running_program_has_left"
        ),
        F.NAMES: held(ODD_TIER),
    },
    F.TIER: {
        F.BUCKET: held("live/test_tiers.py::test_a_bucket_has_its_uses"),
        F.BUNDLE: held(JOB_TO_TIER),
        F.SIGNATURES: held(
            f"{MOVE}test_the_live_layer_takes_what_push_signed_and_nothing_else",
            "live/test_tiers.py::test_only_signed_entries_are_taken",
        ),
        F.SEAL: held(
            "live/test_tiers.py"
            "::test_a_tier_without_checksums_is_named_with_the_command_that_mends_it"
        ),
        F.PRUNE: held(f"{MOVE}test_a_tier_gives_back_what_prune_removed"),
        F.CI: held(JOB_TO_TIER),
        F.PORTABLE: held(
            "live/test_tiers.py::test_the_second_machine_hits_what_the_first_has_compiled"
        ),
        F.TORCH: NO_LIVE_TORCH,
        F.CAP: held(f"{MOVE}test_jax_with_a_cap_goes_on_writing_where_a_tier_filled_the_directory"),
        F.VERSIONS: held(TURNS),
        F.USERS: held(FILLED_BY_ROOT),
        F.NAMES: held(ODD_TIER),
    },
    F.BUCKET: {
        F.BUNDLE: held("cli/test_ci.py::test_a_bundle_as_one_object"),
        F.SIGNATURES: held("cli/test_push_pull.py::test_only_what_a_trusted_key_has_signed"),
        F.SEAL: held("cli/test_remote.py::test_seal_and_pins_in_a_bucket"),
        F.PRUNE: held("cli/test_push_pull.py::test_prune_remote_asks"),
        F.CI: held("cli/test_ci.py::test_there_and_back"),
        F.PORTABLE: held("integration/test_move_jax.py::test_pushed_here_pulled_there"),
        F.TORCH: held("layouts/test_torch_bundle.py::test_a_bucket_holds_them"),
        F.CAP: held("cli/test_push_pull.py::test_dates_travel"),
        F.VERSIONS: held(f"{KEEP}test_entries_of_another_version_go_through_a_bucket"),
        F.USERS: held("cache/test_ledger.py::test_a_pulled_ledger_neither_accuses_nor_pins"),
        F.NAMES: held("cli/test_push_pull.py::test_odd_names_travel"),
    },
    F.BUNDLE: {
        F.SIGNATURES: held(ONLY_SIGNED),
        F.SEAL: held("cli/test_move.py::test_what_travels_arrives_sealed"),
        F.PRUNE: held("cache/test_ledger.py::test_an_arrival_is_a_use_where_no_hit_came_along"),
        F.CI: held("cli/test_ci.py::test_a_job_keeps_what_it_used_and_what_is_new"),
        F.PORTABLE: held("integration/test_move_jax.py::test_portable_entries_hit_on_a_condition"),
        F.TORCH: held("layouts/test_torch_bundle.py::test_a_bundle_brings_everything_there"),
        F.CAP: held(f"{KEEP}test_a_capped_cache_goes_through_a_job_of_ci"),
        F.VERSIONS: held(OTHER_TRAVELS),
        F.USERS: held("cache/test_ledger.py::test_an_imported_record_is_marked"),
        F.NAMES: held(ODD_BUNDLE),
    },
    F.SIGNATURES: {
        F.SEAL: held(SIGNED_AND_CHANGED),
        F.PRUNE: held(SIGNED_AND_CHANGED),
        F.CI: held(ONLY_SIGNED),
        F.PORTABLE: held(SIGNED_AND_CHANGED),
        F.TORCH: held(
            f"{KEEP}test_a_signed_bundle_of_torch_is_taken_where_signatures_are_required"
        ),
        F.CAP: Senseless("A cap reads -atime files and sizes, and a signature covers neither"),
        F.VERSIONS: Senseless("A signature covers the payload's bytes, whichever JAX wrote them"),
        F.USERS: held(FILLED_BY_ROOT),
        F.NAMES: held(ODD_RECIPE),
    },
    F.SEAL: {
        F.PRUNE: held(
            "cache/test_ledger.py"
            "::test_an_entry_that_was_compiled_again_is_not_held_to_an_older_record"
        ),
        F.CI: held("cli/test_move.py::test_damage_goes_nowhere"),
        F.PORTABLE: held(f"{KEEP}test_a_capped_cache_is_pruned_and_sealed"),
        F.TORCH: held(OTHER_LAYOUT, BESIDE_TORCH),
        F.CAP: held(f"{KEEP}test_a_capped_cache_is_pruned_and_sealed"),
        F.VERSIONS: held(OTHER_TRAVELS),
        F.USERS: held(SHARED_WITH_JAX),
        F.NAMES: held(ODD_TIER),
    },
    F.PRUNE: {
        F.CI: held(f"{MOVE}test_a_pin_of_the_job_outlives_prune_and_is_saved"),
        F.PORTABLE: held(f"{MOVE}test_a_pin_of_the_job_outlives_prune_and_is_saved"),
        F.TORCH: held(
            "layouts/test_torch_prune.py::test_a_pinned_graph_stays_with_all_that_it_needs",
            BESIDE_TORCH,
            f"{KEEP}test_jax_in_the_same_directory_is_left_alone",
        ),
        F.CAP: held(
            "integration/test_prune_jax.py::test_jax_with_a_cap_goes_on_where_prune_stopped"
        ),
        F.VERSIONS: held(f"{KEEP}test_prune_by_use_keeps_the_version_that_runs"),
        F.USERS: held(
            "cli/test_shared_directory.py::test_the_owner_can_write_to_all_that_root_has_left"
        ),
        F.NAMES: held(ODD_BUNDLE),
    },
    F.CI: {
        F.PORTABLE: held(f"{MOVE}test_a_portable_cache_is_restored_into_another_directory"),
        F.TORCH: held(OTHER_LAYOUT),
        F.CAP: held(f"{KEEP}test_a_capped_cache_goes_through_a_job_of_ci"),
        F.VERSIONS: held(f"{KEEP}test_ci_restores_the_version_that_runs_and_keeps_the_other"),
        F.USERS: held(FILLED_BY_ROOT),
        F.NAMES: held("cli/test_ci.py::test_a_bundle_that_is_there_may_have_any_name"),
    },
    F.PORTABLE: {
        F.TORCH: held(REFUSED_BY_TORCH),
        F.CAP: held(f"{KEEP}test_a_capped_cache_goes_through_a_job_of_ci"),
        F.VERSIONS: held(TURNS),
        F.USERS: Senseless("The setting decides the key, whoever wrote the file"),
        F.NAMES: held(ODD_TIER),
    },
    F.TORCH: {
        F.CAP: held(BESIDE_TORCH),
        F.VERSIONS: held(
            "layouts/test_torch_verify.py::test_the_class_of_another_torch_is_no_fault"
        ),
        F.USERS: held(
            "cli/test_shared_directory.py"
            "::test_the_owner_can_take_the_locks_of_torch_that_root_has_left"
        ),
        F.NAMES: NotYet(),
    },
    F.CAP: {F.VERSIONS: held(TURNS), F.USERS: held(SHARED_WITH_JAX), F.NAMES: held(ODD_RECIPE)},
    F.VERSIONS: {F.USERS: NotYet(), F.NAMES: NotYet()},
    F.USERS: {F.NAMES: held(FILLED_BY_ROOT)},
}
PAIRS = tuple(combinations(Feature, 2))
#: Of the features that README names, no pair may be "not yet".
NAMED_BY_README = tuple(Feature)[:12]
