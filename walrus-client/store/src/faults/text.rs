//! The text form of a fault plan: see the grammar in [`super`].

use std::{fmt, str::FromStr, time::Duration};

use super::{Fault, FaultPlan, FaultRoute, FaultRule, MAX_FAULT_RULES};

/// Faults that a client must survive by retries and probes: no answer is false, and everything succeeds in
/// the end. About one request in six meets one.
const STORE: &str = "get:404-after-put=600ms@0.5,head:404-after-put=600ms@0.5,quilt:404-after-put=600ms@0.5,\
                     put:500=0.03,put:503=0.03,put:429=0.03,put:504=0.03,put:answer-lost=0.04,\
                     get:500=0.03,get:503=0.03,get:429=0.03,get:504=0.02,get:truncated=0.03,\
                     head:500=0.03,head:503=0.03,head:429=0.03,\
                     quilt:500=0.03,quilt:503=0.03,quilt:429=0.03,any:slow=150ms@0.05;seed=1";
/// Also false answers.
const HOSTILE: &str = "get:404-after-put=600ms@0.5,head:404-after-put=600ms@0.5,\
                       put:500=0.03,put:503=0.03,put:429=0.03,put:504=0.03,put:answer-lost=0.05,put:wrong-id=0.03,\
                       put:truncated=0.03,get:500=0.03,get:503=0.03,get:429=0.03,get:truncated=0.05,\
                       get:oversized=0.05,get:endless=0.02,get:wrong-bytes=0.05,get:drip=300ms@0.02,\
                       head:500=0.03,quilt:500=0.03,quilt:wrong-bytes=0.05,any:slow=150ms@0.05;seed=1";

/// The reason why a text is not a fault plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultPlanError {
    /// A rule that is not of the form `route:fault`.
    #[error("\"{0}\" is not route:fault, for example put:500=0.1, and no preset (none, store, hostile)")]
    Rule(String),
    /// An unknown route.
    #[error("\"{0}\" is no route; take put, get, head, quilt or any")]
    Route(String),
    /// An unknown fault.
    #[error(
        "\"{0}\" is no fault; take 500, 503, 429, 504, 404-after-put, slow, drip, truncated, oversized, endless, \
         wrong-bytes, wrong-id or answer-lost"
    )]
    Fault(String),
    /// A share outside 0 to 1.
    #[error("\"{0}\" is no share; take a number from 0 to 1")]
    Share(String),
    /// An invalid duration.
    #[error("\"{0}\" is no duration; take a number with ms, s or m, for example 200ms")]
    Duration(String),
    /// An invalid seed.
    #[error("\"{0}\" is no seed; end with ;seed= and a number")]
    Seed(String),
    /// Too many rules.
    #[error("more than {MAX_FAULT_RULES} rules")]
    TooMany,
}

impl FaultPlan {
    /// A plan by name: `none`, `store` or `hostile`.
    #[must_use]
    pub fn preset(name: &str) -> Option<Self> {
        let text = match name {
            "none" => "",
            "store" => STORE,
            "hostile" => HOSTILE,
            _ => return None,
        };
        Some(parse(text).expect("the presets are tested"))
    }
}

impl FromStr for FaultPlan {
    type Err = FaultPlanError;

    fn from_str(text: &str) -> Result<Self, FaultPlanError> {
        Self::preset(text.trim()).map_or_else(|| parse(text), Ok)
    }
}

fn parse(text: &str) -> Result<FaultPlan, FaultPlanError> {
    let (rules, seed) = match text.split_once(';') {
        None => (text, 0),
        Some((rules, seed)) => {
            let number = seed.trim().strip_prefix("seed=").and_then(|digits| digits.parse().ok());
            (rules, number.ok_or_else(|| FaultPlanError::Seed(shown(seed)))?)
        }
    };
    let rules = rules.split(',').map(str::trim).filter(|rule| !rule.is_empty());
    let rules = rules.take(MAX_FAULT_RULES + 1).map(parse_rule).collect::<Result<Vec<_>, _>>()?;
    if rules.len() > MAX_FAULT_RULES {
        return Err(FaultPlanError::TooMany);
    }
    Ok(FaultPlan { seed, rules })
}

fn parse_rule(text: &str) -> Result<FaultRule, FaultPlanError> {
    let (route, fault) = text.split_once(':').ok_or_else(|| FaultPlanError::Rule(shown(text)))?;
    let route = match route {
        "put" => FaultRoute::Put,
        "get" => FaultRoute::Get,
        "head" => FaultRoute::Head,
        "quilt" => FaultRoute::Quilt,
        "any" => FaultRoute::Any,
        _ => return Err(FaultPlanError::Route(shown(route))),
    };
    let end = fault.find(['=', '@']).unwrap_or(fault.len());
    let (name, value) = fault.split_at(end);
    let timed = |fault: fn(Duration) -> Fault| {
        let value = value.strip_prefix('=').ok_or_else(|| FaultPlanError::Duration(shown(value)))?;
        let (duration, share) = value.split_once('@').map_or((value, None), |(a, b)| (a, Some(b)));
        Ok((fault(parse_duration(duration)?), share))
    };
    let plain = |fault| Ok((fault, value.get(1..).filter(|_| !value.is_empty())));
    let (fault, share) = match name {
        "404-after-put" => timed(Fault::NotFoundAfterPut),
        "slow" => timed(Fault::Slow),
        "drip" => timed(Fault::Drip),
        "500" => plain(Fault::Internal),
        "503" => plain(Fault::Unavailable),
        "429" => plain(Fault::TooMany),
        "504" => plain(Fault::GatewayTimeout),
        "truncated" => plain(Fault::Truncated),
        "oversized" => plain(Fault::Oversized),
        "endless" => plain(Fault::Endless),
        "wrong-bytes" => plain(Fault::WrongBytes),
        "wrong-id" => plain(Fault::WrongId),
        "answer-lost" => plain(Fault::AnswerLost),
        _ => Err(FaultPlanError::Fault(shown(name))),
    }?;
    let share = share.map_or(Ok(1.0), |text| {
        let number = text.parse().ok().filter(|share: &f64| (0.0..=1.0).contains(share));
        number.ok_or_else(|| FaultPlanError::Share(shown(text)))
    })?;
    Ok(FaultRule { route, fault, share })
}

fn parse_duration(text: &str) -> Result<Duration, FaultPlanError> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let in_ms = match unit {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        _ => None,
    };
    let duration = digits.parse::<u64>().ok().zip(in_ms).and_then(|(number, unit)| number.checked_mul(unit));
    duration.map(Duration::from_millis).ok_or_else(|| FaultPlanError::Duration(shown(text)))
}

/// A bounded part of the input, for an error.
fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

impl fmt::Display for FaultRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Head => "head",
            Self::Quilt => "quilt",
            Self::Any => "any",
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFoundAfterPut(window) => write!(f, "404-after-put={}ms", window.as_millis()),
            Self::Slow(delay) => write!(f, "slow={}ms", delay.as_millis()),
            Self::Drip(time) => write!(f, "drip={}ms", time.as_millis()),
            Self::Internal => f.write_str("500"),
            Self::Unavailable => f.write_str("503"),
            Self::TooMany => f.write_str("429"),
            Self::GatewayTimeout => f.write_str("504"),
            Self::Truncated => f.write_str("truncated"),
            Self::Oversized => f.write_str("oversized"),
            Self::Endless => f.write_str("endless"),
            Self::WrongBytes => f.write_str("wrong-bytes"),
            Self::WrongId => f.write_str("wrong-id"),
            Self::AnswerLost => f.write_str("answer-lost"),
        }
    }
}

/// The text form, which parses to the same plan (durations to the millisecond).
impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, FaultRule { route, fault, share }) in self.rules.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma}{route}:{fault}@{share}")?;
        }
        write!(f, ";seed={}", self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_read_and_printed() {
        let text = "put:500=0.1,get:404-after-put=3s,any:slow=200ms@0.05;seed=7";
        let plan: FaultPlan = text.parse().unwrap();
        let rule = |route, fault, share| FaultRule { route, fault, share };
        let expected = FaultPlan {
            seed: 7,
            rules: vec![
                rule(FaultRoute::Put, Fault::Internal, 0.1),
                rule(FaultRoute::Get, Fault::NotFoundAfterPut(Duration::from_secs(3)), 1.0),
                rule(FaultRoute::Any, Fault::Slow(Duration::from_millis(200)), 0.05),
            ],
        };
        assert_eq!(plan, expected);
        assert_eq!(plan.to_string(), "put:500@0.1,get:404-after-put=3000ms@1,any:slow=200ms@0.05;seed=7");
        for name in ["none", "store", "hostile"] {
            let preset = name.parse::<FaultPlan>().unwrap();
            assert_eq!(preset.to_string().parse(), Ok(preset), "{name}");
        }
        assert_eq!("".parse(), Ok(FaultPlan::default()));
    }

    #[test]
    fn texts_that_are_no_plan_are_refused() {
        use FaultPlanError as E;
        let text = str::to_owned;
        for (given, error) in [
            ("put", E::Rule(text("put"))),
            ("delete:500", E::Route(text("delete"))),
            ("put:501", E::Fault(text("501"))),
            ("put:500=2", E::Share(text("2"))),
            ("put:500=-0.1", E::Share(text("-0.1"))),
            ("put:500=NaN", E::Share(text("NaN"))),
            ("put:500=", E::Share(text(""))),
            ("get:slow", E::Duration(text(""))),
            ("get:slow=0.5", E::Duration(text("0.5"))),
            ("get:slow=99999999999999999999ms", E::Duration(text("99999999999999999999ms"))),
            ("get:slow=999999999999999999m", E::Duration(text("999999999999999999m"))),
            ("put:500;seed=x", E::Seed(text("seed=x"))),
            ("put:500;7", E::Seed(text("7"))),
            (&"put:500,".repeat(65), E::TooMany),
        ] {
            assert_eq!(given.parse::<FaultPlan>(), Err(error), "{given}");
        }
    }
}
