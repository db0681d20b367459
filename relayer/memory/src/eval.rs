//! How well recall finds what was asked for, and how fast: measured with the search code of the product and nothing else.

mod locomo;
mod measures;
mod speed;

pub use locomo::{EvalError, EvalProgress, locomo};
pub use measures::{ConfigReport, Measures, NoMatch, Report};
pub use speed::{Scale, Speed, scan_speed};
