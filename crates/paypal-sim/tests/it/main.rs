//! The simulator through HTTP, as a PayPal client meets it.

#[cfg(test)]
mod client;
#[cfg(test)]
mod holds;
#[cfg(test)]
mod orders;
#[cfg(test)]
mod pages;
#[cfg(test)]
mod schemas;
#[cfg(test)]
mod settlement;
#[cfg(test)]
mod webhooks;
