//! Which crate may know which.

/// What each crate may depend on of ours, and what its tests may use besides. `earnest` alone knows
/// all; the simulator knows nothing of Earnest, so that a wrong field name cannot pass on both
/// sides.
pub(super) const EDGES: &[(&str, &[&str], &[&str])] = &[
    // Its tests run the rules as everybody does: through the store.
    ("earnest-core", &[], &["earnest-sim", "earnest-store", "pg-cluster"]),
    ("earnest-store", &["earnest-core"], &["pg-cluster"]),
    ("earnest-sim", &["earnest-core", "earnest-store"], &[]),
    ("earnest-paypal", &["earnest-core"], &["paypal-sim"]),
    ("earnest-sdk", &["earnest-core"], &[]),
    ("paypal-sim", &[], &[]),
    // For tests alone: it ends processes and deletes folders.
    ("pg-cluster", &[], &[]),
    (
        "earnest",
        &[
            "earnest-core",
            "earnest-store",
            "earnest-sim",
            "earnest-paypal",
            "earnest-sdk",
            "paypal-sim",
        ],
        &["pg-cluster"],
    ),
];

/// Crates of others that may be known in some places only, and why.
pub(super) const KEPT_TO: &[(&str, &[&str], &str)] = &[
    (
        "rusqlite",
        &["earnest-store", "earnest-sdk", "earnest-sim"],
        "SQL stands in the store and the nonce file; the simulation is a disk under it",
    ),
    ("tokio-postgres", &["earnest-store"], "SQL stands in the store"),
    ("tokio", NOT_CORE, CORE_IS_PURE),
    ("reqwest", NOT_CORE, CORE_IS_PURE),
    ("hyper", NOT_CORE, CORE_IS_PURE),
    ("axum", &["earnest", "earnest-sdk"], "only what serves our own API or a seller's routes"),
    ("getrandom", NOT_CORE, CORE_IS_PURE),
    ("tracing", NOT_CORE, CORE_IS_PURE),
    ("clap", &["earnest"], "one binary"),
];
const NOT_CORE: &[&str] =
    &["earnest", "earnest-store", "earnest-paypal", "earnest-sdk", "paypal-sim"];
const CORE_IS_PURE: &str = "the rules do no IO and meet no chance";
