//! Earnest from outside.

#![cfg(test)]

mod tidy;
