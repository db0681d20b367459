//! Measures the quality and the speed of recall, with the product's own search code.

mod locomo;
mod measures;
mod speed;

pub use locomo::{EvalError, EvalProgress, locomo};
pub use measures::{ConfigReport, Measures, NoMatch, Report};
pub use speed::{Scale, Speed, scan_speed};
