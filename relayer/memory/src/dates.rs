//! Calendar days as text. Search, writing and the prompt use them.

use std::time::Duration;

use time::{Date, OffsetDateTime};

/// Milliseconds in a day.
pub(crate) const DAY_MS: u64 = 86_400_000;

/// A duration in milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

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

impl Day {
    /// The day of a time; the last day of 9999 for later ones.
    pub(crate) fn of(time_ms: u64) -> Self {
        let seconds = i64::try_from(time_ms / 1000).unwrap_or(i64::MAX);
        let date = OffsetDateTime::from_unix_timestamp(seconds).map_or(Date::MAX, OffsetDateTime::date);
        let (year, month, day) = date.to_calendar_date();
        Self { year: year.unsigned_abs().into(), month: u8::from(month).into(), day: day.into() }
    }

    /// In digits, as in "2023-05-07".
    pub(crate) fn iso(self) -> String {
        format!("{:04}-{:02}-{:02}", self.year, self.month, self.day)
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

/// Days of the week from Monday on, in lower case.
const WEEK: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

/// Counts of days, weeks, months and years in words.
const FEW: [(&str, u64); 8] =
    [("a", 1), ("an", 1), ("one", 1), ("two", 2), ("three", 3), ("four", 4), ("five", 5), ("six", 6)];

/// The absolute dates of relative ones in a text: "7 May 2023" for "yesterday", "April 2023" for "last
/// month". `time_ms` is the time of the text. Words are in lower case.
pub(crate) fn meant<'a>(words: impl Iterator<Item = &'a str>, time_ms: u64) -> Vec<String> {
    let today = time_ms / DAY_MS;
    // The first day of the epoch was a Thursday.
    let weekday = (today + 3) % 7;
    let on = |days: u64| Day::of(days.saturating_mul(DAY_MS)).to_string();
    let month = |months: u64| {
        let (year, month) = (months / 12, months % 12 + 1);
        Day { year, month, day: 1 }
            .to_string()
            .split_once(' ')
            .map(|(_, rest)| rest.to_owned())
            .unwrap_or_default()
    };
    let Day { year, month: this_month, .. } = Day::of(time_ms);
    let months = year * 12 + this_month - 1;
    let (mut found, mut before, mut before_that) = (Vec::new(), "", "");
    for word in words {
        let ahead = match before {
            "last" => Some(false),
            "next" => Some(true),
            _ => None,
        };
        let by =
            |now: u64, step: u64| if ahead == Some(true) { now + step } else { now.saturating_sub(step) };
        let named = WEEK.iter().position(|name| *name == word).map(|at| at as u64);
        match (word, named) {
            ("yesterday", _) => found.push(on(today.saturating_sub(1))),
            ("tomorrow", _) => found.push(on(today + 1)),
            ("month", _) if ahead.is_some() => found.push(month(by(months, 1))),
            ("year", _) if ahead.is_some() => found.push(by(year, 1).to_string()),
            ("ago", _) => {
                let said = FEW.iter().find(|(name, _)| *name == before_that).map(|(_, count)| *count);
                let count = said.or_else(|| before_that.parse().ok().filter(|count| *count < 100));
                let Some(count) = count else { continue };
                match before {
                    "day" | "days" => found.push(on(today.saturating_sub(count))),
                    "week" | "weeks" => {
                        let day = Day::of(today.saturating_sub(7 * count).saturating_mul(DAY_MS));
                        found.push(month(day.year * 12 + day.month - 1));
                    }
                    "month" | "months" => found.push(month(months.saturating_sub(count))),
                    "year" | "years" => found.push(year.saturating_sub(count).to_string()),
                    _ => {}
                }
            }
            (_, Some(named)) if ahead == Some(false) => {
                found.push(on(today.saturating_sub((weekday + 6 - named) % 7 + 1)))
            }
            (_, Some(named)) if ahead == Some(true) => found.push(on(today + (named + 6 - weekday) % 7 + 1)),
            _ => {}
        }
        (before_that, before) = (before, word);
    }
    found
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
        }
        assert_eq!(Day::of(1_683_417_600_000).iso(), "2023-05-07");
        let _ = Day::of(u64::MAX).to_string();
    }

    #[test]
    fn what_is_said_of_days_means_days() {
        // A Monday.
        const MAY_8: u64 = 1_683_504_000_000;
        for (text, expected) in [
            ("i went yesterday", "7 May 2023"),
            ("see you tomorrow", "9 May 2023"),
            ("we met last friday", "5 May 2023"),
            ("we met last monday", "1 May 2023"),
            ("we meet next monday", "15 May 2023"),
            ("we meet next tuesday", "9 May 2023"),
            ("i moved last month", "April 2023"),
            ("i moved last year", "2022"),
            ("i start next year", "2024"),
            ("it was three days ago", "5 May 2023"),
            ("it was 2 weeks ago", "April 2023"),
            ("it was five months ago", "December 2022"),
            ("it was 10 years ago", "2013"),
            ("it was long ago", ""),
            ("on monday of the last season", ""),
        ] {
            assert_eq!(meant(text.split(' '), MAY_8).join(" "), expected, "{text}");
        }
        assert_eq!(meant("yesterday last monday last month last year 99 years ago".split(' '), 0).len(), 5);
        let _ = meant("tomorrow next monday next month next year".split(' '), u64::MAX);
    }
}
