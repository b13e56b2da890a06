//! An offline PayPal over HTTP: own books, faults, clock; knows nothing of Earnest.
