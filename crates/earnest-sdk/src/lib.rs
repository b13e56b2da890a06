//! Charge for an HTTP route, or buy from one: the 402 layer for sellers and the paying client for agents.
