//! The rules of Earnest: pure, no IO, clock or randomness; everything that decides where money goes.
