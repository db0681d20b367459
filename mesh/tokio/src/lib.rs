//! tokio, for crates that also run in a browser.
//!
//! On a system this is tokio itself. In a browser, tokio's channels, locks and macros are its own, since they
//! need no system, and the page's event loop runs timers and tasks. A crate names it `tokio`, so its source has
//! tokio's names everywhere:
//!
//! ```toml
//! tokio = { path = "../mesh/tokio", package = "baton-tokio" }
//! ```

#[cfg(target_family = "wasm")]
pub mod task;

#[cfg(not(target_family = "wasm"))]
pub use ::tokio::*;

#[cfg(target_family = "wasm")]
pub use ::tokio::{io, join, pin, select, sync, try_join};
#[cfg(target_family = "wasm")]
pub use task::spawn;

/// Timers, and a clock that a page has.
#[cfg(target_family = "wasm")]
pub mod time {
    use std::{future::Future, time::Duration};

    pub use wasmtimer::{std::Instant, tokio::*};

    /// Longest time of a page's timer, which counts milliseconds in 31 bits.
    const LONGEST: Duration = Duration::from_secs(24 * 24 * 3600);

    /// Gives a future a time to end. A time beyond the clock's end is a long one, as with tokio.
    pub fn timeout<F: Future>(duration: Duration, future: F) -> Timeout<F> {
        wasmtimer::tokio::timeout(duration.min(LONGEST), future)
    }
}

/// The event loop.
#[cfg(target_family = "wasm")]
pub mod runtime {
    /// The page's event loop, which is always there.
    #[derive(Debug)]
    pub struct Handle(());

    impl Handle {
        /// The event loop.
        ///
        /// # Errors
        /// Never; tokio's own has an error.
        pub fn try_current() -> Result<Self, std::convert::Infallible> {
            Ok(Self(()))
        }
    }
}
