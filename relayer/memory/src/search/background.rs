//! The similarity of unrelated texts. It differs between embedders: unrelated texts have a cosine of 0.05
//! with one and of 0.7 with another. So a cosine alone says nothing.

use baton_models::embed::{EmbedError, EmbedRole, Embedder};

/// Texts about different subjects, of the length of a message. General on purpose.
const UNRELATED: [&str; 16] = [
    "The train to the coast leaves at nine in the morning.",
    "My grandmother kept bees behind the old barn.",
    "We should replace the battery of the smoke detector.",
    "The committee postponed its vote on the harbour tax.",
    "I roasted carrots with honey and thyme for dinner.",
    "She is learning to play the cello at the music school.",
    "Our server ran out of disk space during the backup.",
    "He broke his ankle while skiing last winter.",
    "The museum shows paintings from the seventeenth century.",
    "A gallon of petrol costs more than it did in spring.",
    "My cat sleeps on the radiator all afternoon.",
    "The contract ends two months after notice is given.",
    "They planted oak trees along the northern road.",
    "I finished a novel about a lighthouse keeper.",
    "The football match was cancelled because of the rain.",
    "Her thesis compares the grammar of two island languages.",
];

/// Mean and standard deviation of the cosine of unrelated texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Background {
    /// The mean.
    pub mean: f32,
    /// The standard deviation.
    pub deviation: f32,
}

impl Background {
    /// Typical values, for an embedder that was not measured.
    pub const TYPICAL: Self = Self { mean: 0.1, deviation: 0.1 };

    /// Measures an embedder with built-in texts. Needed once for each embedder.
    ///
    /// # Errors
    /// The embedder's error.
    pub async fn measure(embedder: &dyn Embedder) -> Result<Self, EmbedError> {
        let queries = embedder.embed(EmbedRole::Query, &UNRELATED).await?;
        let documents = embedder.embed(EmbedRole::Document, &UNRELATED).await?;
        let mut cosines = Vec::with_capacity(UNRELATED.len() * UNRELATED.len());
        for (row, query) in queries.iter().enumerate() {
            let others = documents.iter().enumerate().filter(|(column, _)| *column != row);
            cosines.extend(
                others.map(|(_, document)| query.iter().zip(document).map(|(a, b)| a * b).sum::<f32>()),
            );
        }
        Ok(Self::of(&cosines))
    }

    /// Mean and deviation of cosines; the deviation has a floor, so that no cosine becomes a certainty.
    fn of(cosines: &[f32]) -> Self {
        if cosines.is_empty() {
            return Self::TYPICAL;
        }
        #[expect(clippy::cast_precision_loss, reason = "some hundreds")]
        let count = cosines.len() as f32;
        let mean = cosines.iter().sum::<f32>() / count;
        let variance = cosines.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / count;
        Self { mean, deviation: variance.sqrt().max(0.02) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_deviation_are_those_of_the_cosines() {
        let found = Background::of(&[0.1, 0.3]);
        assert!((found.mean - 0.2).abs() < 1e-6 && (found.deviation - 0.1).abs() < 1e-6);
        assert_eq!(Background::of(&[]), Background::TYPICAL);
        assert_eq!(Background::of(&[1.0]).deviation, 0.02);
    }
}
