//! Why a check did not come to a result.

/// The reason, in one line. Every error turns into it, so it is none itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(pub String);

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}
