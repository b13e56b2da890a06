//! `Debug` for what holds a secret, or says who a payer is.

/// Implements `Debug` with the named fields alone, so that a log line or a panic shows no voucher,
/// no token and no payer. A test walks the code for types that should use it and do not.
#[macro_export]
macro_rules! shows_only {
    ($type:ty $(: $($field:ident),+ $(,)?)?) => {
        impl ::std::fmt::Debug for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(stringify!($type))
                    $($(.field(stringify!($field), &self.$field))+)?
                    .finish_non_exhaustive()
            }
        }
    };
}
