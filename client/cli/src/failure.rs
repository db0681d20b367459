//! The reason for an early end of a call, with its exit code.

use baton_client::{ClientError, choose::NoChoice};
use baton_kit::nearest::nearest;

use crate::out::Out;

/// The reason for an early end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The client's own error.
    Client(ClientError),
    /// The client's own error, with a next step of this call in place of the general one.
    Hinted {
        /// The error.
        error: ClientError,
        /// The next step.
        hint: String,
    },
    /// An error in the call itself, whose text says what to do.
    Usage(String),
    /// An error in the call itself.
    Advice {
        /// The error.
        message: String,
        /// The next step.
        hint: String,
    },
    /// A verification found problems; they are shown already.
    Unverified,
    /// A verification found no errors, but blobs that the store lacks; they are shown already.
    NotStored,
    /// An audit without a result; its reason is shown already.
    NotCompared,
    /// A relayer refused, failed, or was unreachable.
    Relayer {
        /// A stable name.
        name: String,
        /// The error.
        message: String,
        /// The next step.
        hint: Option<String>,
    },
    /// A diagnosis found problems; they are shown already.
    Found,
    /// Interrupted by the user.
    Interrupted,
    /// Input or output.
    Io(std::io::Error),
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl Failure {
    /// An error in the call itself, with the next step.
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Advice { message: message.into(), hint: hint.into() }
    }

    /// Whether it is an error in the call itself.
    #[cfg(test)]
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self, Self::Usage(_) | Self::Advice { .. })
    }

    /// The text of the failure.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Client(error) | Self::Hinted { error, .. } => error.to_string(),
            Self::Usage(text) | Self::Advice { message: text, .. } | Self::Relayer { message: text, .. } => {
                text.clone()
            }
            Self::Io(error) => error.to_string(),
            Self::Unverified | Self::NotStored | Self::NotCompared | Self::Interrupted | Self::Found => {
                ClientError::TaskEnded.to_string()
            }
        }
    }

    /// Shows the failure; returns the exit code.
    pub(crate) fn report(&self, out: &Out) -> u8 {
        match self {
            Self::Client(error) => {
                let near = likely_model(error);
                out.error(error.name(), &error.to_string(), near.as_deref().or(error.hint()));
                error.exit_code()
            }
            Self::Hinted { error, hint } => {
                out.error(error.name(), &error.to_string(), Some(hint));
                error.exit_code()
            }
            Self::Usage(text) => {
                out.error("Usage", text, None);
                2
            }
            Self::Advice { message, hint } => {
                out.error("Usage", message, Some(hint));
                2
            }
            Self::Relayer { name, message, hint } => {
                out.error(name, message, hint.as_deref());
                9
            }
            Self::Unverified => 5,
            Self::NotStored => 6,
            Self::NotCompared => 10,
            Self::Found => 1,
            Self::Interrupted => 130,
            // The reader of the output has closed it.
            Self::Io(error) if error.kind() == std::io::ErrorKind::BrokenPipe => 0,
            Self::Io(error) => {
                out.error("Io", &error.to_string(), None);
                1
            }
        }
    }
}

/// The served model that an unknown one may mean, as a next step.
fn likely_model(error: &ClientError) -> Option<String> {
    let ClientError::NoNode(NoChoice::ModelUnavailable { wanted, served }) = error else { return None };
    let near = nearest(wanted, served.split(", "))?;
    Some(format!("did you mean {near}? see what is served: baton nodes"))
}
