//! PayPal's REST API for Earnest; the only PayPal JSON.
