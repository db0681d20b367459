//! The text form of a fault plan: see the grammar in [`super`].

use std::{str::FromStr, time::Duration};

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

const ROUTES: [(&str, FaultRoute); 5] = [
    ("put", FaultRoute::Put),
    ("get", FaultRoute::Get),
    ("head", FaultRoute::Head),
    ("quilt", FaultRoute::Quilt),
    ("any", FaultRoute::Any),
];
/// The faults without a time.
const PLAIN: [(&str, Fault); 10] = [
    ("500", Fault::Internal),
    ("503", Fault::Unavailable),
    ("429", Fault::TooMany),
    ("504", Fault::GatewayTimeout),
    ("truncated", Fault::Truncated),
    ("oversized", Fault::Oversized),
    ("endless", Fault::Endless),
    ("wrong-bytes", Fault::WrongBytes),
    ("wrong-id", Fault::WrongId),
    ("answer-lost", Fault::AnswerLost),
];
/// What an error says to write instead.
const FAULTS: &str = "take 500, 503, 429, 504, 404-after-put, slow, drip, truncated, oversized, endless, wrong-bytes, \
                      wrong-id or answer-lost";
const DURATION: &str = "take a number with ms, s or m, for example 200ms";

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
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::preset(text.trim()).map_or_else(|| parse(text), Ok)
    }
}

fn parse(text: &str) -> Result<FaultPlan, String> {
    let (rules, seed) = match text.split_once(';') {
        None => (text, 0),
        Some((rules, seed)) => {
            let number = seed.trim().strip_prefix("seed=").and_then(|digits| digits.parse().ok());
            (rules, number.ok_or_else(|| no(seed, "seed", "end with ;seed= and a number"))?)
        }
    };
    let rules = rules.split(',').map(str::trim).filter(|rule| !rule.is_empty());
    let rules = rules.take(MAX_FAULT_RULES + 1).map(parse_rule).collect::<Result<Vec<_>, _>>()?;
    if rules.len() > MAX_FAULT_RULES {
        return Err(format!("more than {MAX_FAULT_RULES} rules"));
    }
    Ok(FaultPlan { seed, rules })
}

fn parse_rule(text: &str) -> Result<FaultRule, String> {
    let (route, fault) = text.split_once(':').ok_or_else(|| {
        no(text, "rule", "take route:fault, for example put:500=0.1, or a preset (none, store, hostile)")
    })?;
    let route =
        named(&ROUTES, route).ok_or_else(|| no(route, "route", "take put, get, head, quilt or any"))?;
    let end = fault.find(['=', '@']).unwrap_or(fault.len());
    let (name, value) = fault.split_at(end);
    let (fault, share) = match name {
        "404-after-put" | "slow" | "drip" => {
            let value = value.strip_prefix('=').ok_or_else(|| no(value, "duration", DURATION))?;
            let (time, share) = value.split_once('@').map_or((value, None), |(a, b)| (a, Some(b)));
            let time = duration(time).ok_or_else(|| no(time, "duration", DURATION))?;
            let fault = match name {
                "slow" => Fault::Slow(time),
                "drip" => Fault::Drip(time),
                _ => Fault::NotFoundAfterPut(time),
            };
            (fault, share)
        }
        _ => {
            let fault = named(&PLAIN, name).ok_or_else(|| no(name, "fault", FAULTS))?;
            (fault, value.get(1..).filter(|_| !value.is_empty()))
        }
    };
    let share = share.map_or(Ok(1.0), |text| {
        let number = text.parse().ok().filter(|share: &f64| (0.0..=1.0).contains(share));
        number.ok_or_else(|| no(text, "share", "take a number from 0 to 1"))
    })?;
    Ok(FaultRule { route, fault, share })
}

/// The value with this name.
fn named<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

/// A number with ms, s, m, h or d.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let in_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(in_ms).map(Duration::from_millis)
}

/// The error about a part of the input, which it quotes bounded.
fn no(part: &str, what: &str, instead: &str) -> String {
    format!("\"{}\" is no {what}; {instead}", part.chars().take(40).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_read() {
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
        assert!(["store", "hostile"].iter().all(|name| name.parse::<FaultPlan>().is_ok()));
        assert_eq!("".parse(), Ok(FaultPlan::default()));
    }

    #[test]
    fn texts_that_are_no_plan_are_refused() {
        for (given, part, what) in [
            ("put", "put", "rule"),
            ("delete:500", "delete", "route"),
            ("put:501", "501", "fault"),
            ("put:500=2", "2", "share"),
            ("put:500=-0.1", "-0.1", "share"),
            ("put:500=NaN", "NaN", "share"),
            ("put:500=", "", "share"),
            ("get:slow", "", "duration"),
            ("get:slow=0.5", "0.5", "duration"),
            ("get:slow=99999999999999999999ms", "99999999999999999999ms", "duration"),
            ("get:slow=999999999999999999m", "999999999999999999m", "duration"),
            ("put:500;seed=x", "seed=x", "seed"),
            ("put:500;7", "7", "seed"),
        ] {
            let error = given.parse::<FaultPlan>().unwrap_err();
            assert!(error.starts_with(&format!("\"{part}\" is no {what}; ")), "{given}: {error}");
        }
        assert_eq!("put:500,".repeat(65).parse::<FaultPlan>(), Err("more than 64 rules".to_owned()));
    }
}
