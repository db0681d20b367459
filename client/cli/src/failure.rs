//! The reason for an early end of a call, with its exit code.

use baton_client::{ClientError, choose::NoChoice};
use baton_kit::nearest::nearest;
use baton_proto::ids::SessionId;

use crate::out::{Out, short_session};

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
    /// The client's own error about a session, whose id stands in the next step.
    pub(crate) fn of_session(error: ClientError, session: &SessionId) -> Self {
        match error.hint().filter(|hint| hint.contains("SESSION")) {
            Some(hint) => Self::Hinted { error, hint: hint.replace("SESSION", &short_session(session)) },
            None => error.into(),
        }
    }

    /// An error in the call itself, with the next step.
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Advice { message: message.into(), hint: hint.into() }
    }

    /// Whether it is an error in the call itself.
    #[cfg(test)]
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self, Self::Usage(_) | Self::Advice { .. })
    }

    /// A stable name.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Client(error) | Self::Hinted { error, .. } => error.name(),
            Self::Usage(_) | Self::Advice { .. } => "Usage",
            Self::Relayer { name, .. } => name,
            _ => "Io",
        }
    }

    /// The text of the failure; none if its reason is shown already.
    pub(crate) fn message(&self) -> Option<String> {
        Some(match self {
            Self::Client(error) | Self::Hinted { error, .. } => error.to_string(),
            Self::Usage(text) | Self::Advice { message: text, .. } | Self::Relayer { message: text, .. } => {
                text.clone()
            }
            // The reader of the output has closed it.
            Self::Io(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return None,
            Self::Io(error) => error.to_string(),
            Self::Unverified | Self::NotStored | Self::NotCompared | Self::Interrupted | Self::Found => {
                return None;
            }
        })
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Client(error) => likely_model(error).or_else(|| error.hint().map(str::to_owned)),
            Self::Hinted { hint, .. } | Self::Advice { hint, .. } => Some(hint.clone()),
            Self::Relayer { hint, .. } => hint.clone(),
            _ => None,
        }
    }

    /// Shows the failure; returns the exit code.
    pub(crate) fn report(&self, out: &Out) -> u8 {
        if let Some(message) = self.message() {
            out.error(self.name(), &message, self.hint().as_deref());
        }
        match self {
            Self::Client(error) | Self::Hinted { error, .. } => error.exit_code(),
            Self::Usage(_) | Self::Advice { .. } => 2,
            Self::Relayer { .. } => 9,
            Self::Unverified => 5,
            Self::NotStored => 6,
            Self::NotCompared => 10,
            Self::Found => 1,
            Self::Interrupted => 130,
            Self::Io(_) => u8::from(self.message().is_some()),
        }
    }
}

/// The served model that an unknown one may mean, as a next step.
fn likely_model(error: &ClientError) -> Option<String> {
    let ClientError::NoNode(NoChoice::ModelUnavailable { wanted, served }) = error else { return None };
    let near = nearest(wanted, served.split(", "))?;
    Some(format!("did you mean {near}? see what is served: baton nodes"))
}
