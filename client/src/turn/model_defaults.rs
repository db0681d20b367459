//! The settings of a turn that suit the model which serves it, where the caller sets none.
//!
//! Models below a billion weights repeat a sentence without end more often than others. So their answers are shorter, and
//! tokens that just came are less likely. An attempt settles them once the node, and so the model, is chosen.

use crate::{
    event::{DEFAULT_OUTPUT_TOKENS, MODEL_OUTPUT_TOKENS, MODEL_PENALTY, SMALL_OUTPUT_TOKENS, SMALL_PENALTY},
    session::state::PendingTurn,
};

/// The turn with the settings that suit a model of this name; none if it leaves nothing to the model.
pub(crate) fn settled(turn: &PendingTurn, model: &str) -> Option<PendingTurn> {
    let (penalty, tokens) =
        (turn.sampling.repetition_penalty == MODEL_PENALTY, turn.max_output_tokens == MODEL_OUTPUT_TOKENS);
    if !penalty && !tokens {
        return None;
    }
    let mut turn = turn.clone();
    let small = is_small(model);
    if penalty {
        // A schema repeats its own words.
        let suits = small && turn.sampling.json_schema.is_none();
        turn.sampling.repetition_penalty = if suits { SMALL_PENALTY } else { 1.0 };
    }
    if tokens {
        turn.max_output_tokens = if small { SMALL_OUTPUT_TOKENS } else { DEFAULT_OUTPUT_TOKENS };
    }
    Some(turn)
}

/// Whether a name states a size below a billion weights, and no larger one: `smollm2-135m-instruct`, `qwen3:0.6b`.
fn is_small(model: &str) -> bool {
    let parts = model.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
    let mut sizes = parts.filter_map(billions).peekable();
    sizes.peek().is_some() && sizes.all(|size| size < 1.0)
}

fn billions(part: &str) -> Option<f64> {
    let (number, unit) = part.split_at_checked(part.len().checked_sub(1)?)?;
    let number: f64 = number.parse().ok().filter(|number: &f64| number.is_finite())?;
    match unit {
        "b" | "B" => Some(number),
        "m" | "M" => Some(number / 1000.0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::turn::Sampling;

    use super::*;
    use crate::TurnInput;

    fn turn(input: &TurnInput) -> PendingTurn {
        PendingTurn {
            turn_id: baton_proto::ids::TurnId([0; 16]),
            kind: input.kind,
            supersedes_from: None,
            messages: Vec::new(),
            sampling: input.sampling.clone(),
            max_output_tokens: input.max_output_tokens,
            model: None,
            begun_ms: 0,
        }
    }

    #[test]
    fn sizes_are_read_from_names() {
        for small in
            ["smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct", "gemma3-270m", "qwen3:0.6b", "LFM2-350M"]
        {
            assert!(is_small(small), "{small}");
        }
        for large in [
            "qwen2.5-coder-1.5b-instruct",
            "llama-3.2-1b.Q4_K_M",
            "qwen2.5-7b-instruct-1m",
            "gpt-4o",
            "m",
            "",
            "mine",
        ] {
            assert!(!is_small(large), "{large}");
        }
    }

    #[test]
    fn a_small_models_answer_is_short_and_does_not_repeat() {
        let of = |input: &TurnInput, model: &str| {
            settled(&turn(input), model)
                .map(|turn| (turn.sampling.repetition_penalty, turn.max_output_tokens))
        };
        let open = TurnInput::user("u").by_model();
        assert_eq!(of(&open, "smollm2-135m-instruct"), Some((1.1, 512)));
        assert_eq!(of(&open, "qwen2.5-coder-1.5b-instruct"), Some((1.0, DEFAULT_OUTPUT_TOKENS)));
        open.check().unwrap();
        // The caller's own settings stay, each of them.
        let tokens = TurnInput { max_output_tokens: 2048, ..open.clone() };
        assert_eq!(of(&tokens, "smollm2-135m-instruct"), Some((1.1, 2048)));
        let penalty = TurnInput { sampling: Sampling::default(), ..open.clone() };
        assert_eq!(of(&penalty, "smollm2-135m-instruct"), Some((1.0, 512)));
        assert_eq!(of(&TurnInput::user("u"), "smollm2-135m-instruct"), None);
        let schema = Sampling { json_schema: Some([0; 32]), ..open.sampling.clone() };
        assert_eq!(of(&TurnInput { sampling: schema, ..open }, "smollm2-135m-instruct"), Some((1.0, 512)));
    }
}
