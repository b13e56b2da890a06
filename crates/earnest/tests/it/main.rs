//! One binary of integration tests: through HTTP, against the simulator, a fresh database each.

mod road;
mod world;
