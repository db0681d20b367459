//! Days of the calendar, as people write them.

/// Milliseconds of a day.
pub(crate) const DAY_MS: u64 = 86_400_000;

/// English names of the months, in lower case.
pub(crate) const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

/// A day of the proleptic Gregorian calendar, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Day {
    pub(crate) year: u64,
    /// From 1.
    pub(crate) month: u64,
    /// From 1.
    pub(crate) day: u64,
}

/// The day of a moment in words, in UTC.
#[must_use]
pub fn day(time_ms: u64) -> String {
    Day::of(time_ms).to_string()
}

impl Day {
    /// The day of a moment. After Howard Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`.
    pub(crate) fn of(time_ms: u64) -> Self {
        // Days since 1 March of the year 0, from which leap days fall at the end of a year.
        let days = time_ms / DAY_MS + 719_468;
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted = (5 * day_of_year + 2) / 153;
        let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
        let year = year_of_era + era * 400 + u64::from(month <= 2);
        Self { year, month, day: day_of_year - (153 * shifted + 2) / 5 + 1 }
    }

    /// When it began; 0 for what is before 1970. The same source, `days_from_civil`.
    pub(crate) fn time_ms(self) -> u64 {
        let year = if self.month <= 2 { self.year.saturating_sub(1) } else { self.year };
        let shifted = (self.month + 9) % 12;
        let day_of_year = (153 * shifted + 2) / 5 + self.day.saturating_sub(1);
        let day_of_era = year % 400 * 365 + year % 400 / 4 - year % 400 / 100 + day_of_year;
        (year / 400 * 146_097 + day_of_era).saturating_sub(719_468) * DAY_MS
    }

    /// Name of the month, in lower case.
    pub(crate) fn month_name(self) -> &'static str {
        usize::try_from(self.month.wrapping_sub(1))
            .ok()
            .and_then(|month| MONTHS.get(month))
            .copied()
            .unwrap_or("")
    }
}

impl std::fmt::Display for Day {
    /// As in "7 May 2023".
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.month_name();
        let (first, rest) = name.split_at(1.min(name.len()));
        write!(f, "{} {}{rest} {}", self.day, first.to_uppercase(), self.year)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (time_ms, text) in [
            (0, "1 January 1970"),
            (951_782_400_000, "29 February 2000"),
            (951_868_800_000, "1 March 2000"),
            (1_683_417_600_000, "7 May 2023"),
            (1_683_503_999_999, "7 May 2023"),
            (1_735_603_200_000, "31 December 2024"),
            (4_107_542_400_000, "1 March 2100"),
        ] {
            assert_eq!(Day::of(time_ms).to_string(), text);
            assert_eq!(Day::of(time_ms).time_ms(), time_ms / DAY_MS * DAY_MS);
        }
        let _ = Day::of(u64::MAX).to_string();
    }
}
