//! One binary of integration tests: through HTTP, against the simulator, a fresh database each; and
//! what has to hold of the tree itself.

mod road;
mod tidy;
mod world;
