//! The date that a chat template may show.

use minijinja::{Error, ErrorKind};

/// The date that a template's `strftime_now` formats. It is a setting, not the clock, so that rendering is a
/// function of the prompt and can be replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Date {
    /// Year, four digits.
    pub year: u16,
    /// Month, 1 to 12.
    pub month: u8,
    /// Day of the month, 1 to 31.
    pub day: u8,
}

impl Default for Date {
    /// 26 July 2024, the default of Llama's templates without a clock.
    fn default() -> Self {
        Self { year: 2024, month: 7, day: 26 }
    }
}

impl Date {
    /// Formats as C's `strftime`, at midnight.
    pub(super) fn format(self, pattern: &str) -> Result<String, Error> {
        const MONTHS: [&str; 12] = [
            "January",
            "February",
            "March",
            "April",
            "May",
            "June",
            "July",
            "August",
            "September",
            "October",
            "November",
            "December",
        ];
        let month = MONTHS.get(usize::from(self.month).wrapping_sub(1)).copied().unwrap_or_default();
        let mut out = String::new();
        let mut characters = pattern.chars();
        while let Some(character) = characters.next() {
            if character != '%' {
                out.push(character);
                continue;
            }
            match characters.next() {
                Some('d') => out.push_str(&format!("{:02}", self.day)),
                Some('m') => out.push_str(&format!("{:02}", self.month)),
                Some('Y') => out.push_str(&format!("{:04}", self.year)),
                Some('B') => out.push_str(month),
                Some('b') => out.push_str(&month[..month.len().min(3)]),
                Some('H' | 'M' | 'S') => out.push_str("00"),
                Some('%') => out.push('%'),
                _ => {
                    return Err(Error::new(
                        ErrorKind::InvalidOperation,
                        "strftime_now knows %d %m %Y %B %b %H %M %S only",
                    ));
                }
            }
        }
        Ok(out)
    }
}
