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
        const DAYS: [&str; 7] =
            ["Saturday", "Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday"];
        let weekday = DAYS.get(self.weekday()).copied().unwrap_or_default();
        let start = |name: &str| name.get(..3).unwrap_or(name).to_owned();
        let Self { year, month: number, day } = self;
        let mut out = String::new();
        let mut characters = pattern.chars().peekable();
        while let Some(character) = characters.next() {
            if character != '%' {
                out.push(character);
                continue;
            }
            // A dash leaves out the zeros in front.
            let bare = characters.next_if_eq(&'-').is_some();
            let padded = |number: u32, width: usize| match bare {
                true => number.to_string(),
                false => format!("{number:0width$}"),
            };
            out += &match characters.next() {
                Some('d') => padded(day.into(), 2),
                Some('e') => format!("{day:2}"),
                Some('m') => padded(number.into(), 2),
                Some('Y') => format!("{year:04}"),
                Some('y') => padded(u32::from(year % 100), 2),
                Some('j') => padded(self.day_of_year(), 3),
                Some('B') => month.to_owned(),
                Some('b' | 'h') => start(month),
                Some('A') => weekday.to_owned(),
                Some('a') => start(weekday),
                Some('F') => format!("{year:04}-{number:02}-{day:02}"),
                Some('H' | 'M' | 'S') => padded(0, 2),
                Some('I') => padded(12, 2),
                Some('p') => "AM".to_owned(),
                Some('T' | 'X') => "00:00:00".to_owned(),
                Some('%') => "%".to_owned(),
                _ => {
                    return Err(Error::new(
                        ErrorKind::InvalidOperation,
                        "strftime_now knows %d %e %m %Y %y %j %B %b %A %a %F %H %M %S %I %p %T only",
                    ));
                }
            };
        }
        Ok(out)
    }

    /// Days of the year up to this one.
    fn day_of_year(self) -> u32 {
        let leap =
            self.year.is_multiple_of(4) && (!self.year.is_multiple_of(100) || self.year.is_multiple_of(400));
        let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        lengths.iter().take(usize::from(self.month).saturating_sub(1)).sum::<u32>() + u32::from(self.day)
    }

    /// The day of the week, from Saturday on (Zeller's congruence).
    fn weekday(self) -> usize {
        let (year, month) = match self.month {
            1 | 2 => (usize::from(self.year).saturating_sub(1), usize::from(self.month) + 12),
            month => (usize::from(self.year), usize::from(month)),
        };
        (usize::from(self.day) + 13 * (month + 1) / 5 + year + year / 4 + 700 - year / 100 + year / 400) % 7
    }
}
