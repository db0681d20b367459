//! The reason for an early end of a call, with its exit code.

use baton_client::{ClientError, choose::NoChoice};
use baton_kit::nearest::nearest;
use baton_proto::ids::SessionId;

use crate::out::{Out, short};

/// The reason for an early end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The client's own error.
    Client(ClientError),
    /// An error in words: of the call itself, of a relayer, or the client's own with a next step of this call.
    Described {
        /// A stable name.
        name: String,
        /// The error.
        message: String,
        /// The next step, unless the error says it.
        hint: Option<String>,
        /// The exit code.
        code: u8,
    },
    /// What was checked is not well. It is shown already, and this is the exit code.
    Shown(u8),
    /// Interrupted by the user.
    Interrupted,
    /// Input or output.
    Io(std::io::Error),
}

/// The exit code of an error in the call itself.
const USAGE: u8 = 2;

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
    /// A verification found problems; they are shown already.
    pub(crate) const UNVERIFIED: Self = Self::Shown(5);
    /// A verification found no errors, but blobs that the store lacks; they are shown already.
    pub(crate) const NOT_STORED: Self = Self::Shown(6);

    /// The client's own error about a session, whose id stands in the next step.
    pub(crate) fn of_session(error: ClientError, session: &SessionId) -> Self {
        match error.hint().filter(|hint| hint.contains("SESSION")) {
            Some(hint) => Self::hinted(&error, hint.replace("SESSION", &short(session))),
            None => error.into(),
        }
    }

    /// The client's own error, with a next step of this call in place of the general one.
    pub(crate) fn hinted(error: &ClientError, hint: String) -> Self {
        let (name, code) = (error.name().to_owned(), error.exit_code());
        Self::Described { name, message: error.to_string(), hint: Some(hint), code }
    }

    /// An error in the call itself, whose text says what to do.
    pub(crate) fn wrong(message: impl Into<String>) -> Self {
        Self::Described { name: "Usage".to_owned(), message: message.into(), hint: None, code: USAGE }
    }

    /// An error in the call itself, with the next step.
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        let (name, hint) = ("Usage".to_owned(), Some(hint.into()));
        Self::Described { name, message: message.into(), hint, code: USAGE }
    }

    /// A relayer refused, failed, or was unreachable.
    pub(crate) fn of_relayer(name: impl Into<String>, message: String, hint: Option<String>) -> Self {
        Self::Described { name: name.into(), message, hint, code: 9 }
    }

    /// Whether it is an error in the call itself.
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self, Self::Described { code: USAGE, .. })
    }

    /// A stable name.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Client(error) => error.name(),
            Self::Described { name, .. } => name,
            _ => "Io",
        }
    }

    /// The text of the failure; none if its reason is shown already.
    pub(crate) fn message(&self) -> Option<String> {
        match self {
            Self::Client(error) => Some(error.to_string()),
            Self::Described { message, .. } => Some(message.clone()),
            // The reader of the output has closed it.
            Self::Io(error) if error.kind() == std::io::ErrorKind::BrokenPipe => None,
            Self::Io(error) => Some(error.to_string()),
            Self::Shown(_) | Self::Interrupted => None,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Client(error) => likely_model(error).or_else(|| error.hint().map(str::to_owned)),
            Self::Described { hint, .. } => hint.clone(),
            _ => None,
        }
    }

    /// Shows the failure; returns the exit code.
    pub(crate) fn report(&self, out: &Out) -> u8 {
        let message = self.message();
        if let Some(message) = &message {
            out.error(self.name(), message, self.hint().as_deref());
        }
        match self {
            Self::Client(error) => error.exit_code(),
            Self::Described { code, .. } | Self::Shown(code) => *code,
            Self::Interrupted => 130,
            Self::Io(_) => u8::from(message.is_some()),
        }
    }
}

/// The served model that an unknown one may mean, as a next step.
fn likely_model(error: &ClientError) -> Option<String> {
    let ClientError::NoNode(NoChoice::ModelUnavailable { wanted, served }) = error else { return None };
    let near = nearest(wanted, served.split(", "))?;
    Some(format!("did you mean {near}? see what is served: baton nodes"))
}
