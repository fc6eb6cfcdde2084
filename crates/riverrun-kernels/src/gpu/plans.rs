//! What a foreign library makes for each problem, once: its plans, and its refusals.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How long a refusal stands that may pass, as one for want of memory: a new attempt may take some tenths of a second, too long
/// for every call.
const PAUSE: Duration = Duration::from_secs(60);

/// Why a library does not compute something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    reason: String,
    /// It would be refused again: the library does not have it.
    lasting: bool,
}

impl Refusal {
    /// One that stands for the life of the process.
    pub fn lasting(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            lasting: true,
        }
    }

    /// With the status of a call into a library: lasting if that says that the library does not have what was asked for.
    pub fn of_status(reason: String, lasting: bool) -> Self {
        Self { reason, lasting }
    }

    pub fn is_lasting(&self) -> bool {
        self.lasting
    }
}

/// One that may pass.
impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Self {
            reason,
            lasting: false,
        }
    }
}

impl From<Refusal> for String {
    fn from(refusal: Refusal) -> Self {
        refusal.reason
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// A refusal, and when it came.
struct Refused {
    refusal: Refusal,
    since: Instant,
}

impl Refused {
    fn stands(&self, pause: Duration) -> bool {
        self.refusal.lasting || self.since.elapsed() < pause
    }
}

/// Plans by problem.
pub(crate) struct Plans<K, P> {
    made: RwLock<HashMap<K, Result<Arc<P>, Refused>>>,
    /// Held while one is made.
    making: Mutex<()>,
    pause: Duration,
}

impl<K: Eq + Hash, P> Plans<K, P> {
    pub fn new() -> Self {
        Self {
            made: RwLock::default(),
            making: Mutex::default(),
            pause: PAUSE,
        }
    }

    /// The plan of a problem, made at the first call: other calls wait meanwhile. `make` may wait for the device's thread, which
    /// must not ask for plans.
    ///
    /// # Errors
    /// A refusal, of this call or of one before that stands.
    pub fn get(&self, key: K, make: impl FnOnce() -> Result<P, Refusal>) -> Result<Arc<P>, String> {
        if let Some(plan) = self.find(&key) {
            return plan;
        }
        let _one = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = self.find(&key) {
            return plan;
        }
        let plan = make().map(Arc::new);
        let given = plan.clone().map_err(String::from);
        let plan = plan.map_err(|refusal| Refused {
            refusal,
            since: Instant::now(),
        });
        let mut made = self.made.write().unwrap_or_else(PoisonError::into_inner);
        made.insert(key, plan);
        given
    }

    /// The plan of a problem or a refusal that stands.
    fn find(&self, key: &K) -> Option<Result<Arc<P>, String>> {
        let made = self.made.read().unwrap_or_else(PoisonError::into_inner);
        match made.get(key)? {
            Ok(plan) => Some(Ok(plan.clone())),
            Err(refused) if refused.stands(self.pause) => Some(Err(refused.refusal.reason.clone())),
            Err(_) => None,
        }
    }

    /// How many are kept.
    pub fn len(&self) -> usize {
        let made = self.made.read().unwrap_or_else(PoisonError::into_inner);
        made.len()
    }

    /// Drops all; a plan in use lives on.
    pub fn clear(&self) {
        let mut made = self.made.write().unwrap_or_else(PoisonError::into_inner);
        made.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plans(pause: Duration) -> Plans<u32, u32> {
        Plans {
            pause,
            ..Plans::new()
        }
    }

    fn full() -> Refusal {
        Refusal::from("no memory".to_string())
    }

    #[test]
    fn a_refusal_that_may_pass_is_forgotten() {
        let plans = plans(Duration::ZERO);
        assert_eq!(plans.get(1, || Err(full())), Err("no memory".into()));
        assert_eq!(plans.get(1, || Ok(7)), Ok(Arc::new(7)));
        assert_eq!(plans.get(1, || Err(full())), Ok(Arc::new(7)));
    }

    #[test]
    fn a_refusal_that_may_pass_stands_for_a_while() {
        let plans = plans(Duration::from_secs(1000));
        let _ = plans.get(1, || Err(full()));
        assert_eq!(plans.get(1, || Ok(7)), Err("no memory".into()));
    }

    #[test]
    fn what_a_library_does_not_have_stays_refused() {
        let plans = plans(Duration::ZERO);
        let _ = plans.get(1, || Err(Refusal::lasting("not supported")));
        assert_eq!(plans.get(1, || Ok(7)), Err("not supported".into()));
        assert_eq!(plans.len(), 1);
        plans.clear();
        assert_eq!(plans.get(1, || Ok(7)), Ok(Arc::new(7)));
    }
}
