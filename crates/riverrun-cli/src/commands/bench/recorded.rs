//! Calls from a recording: the device's time, without the host's part.

use riverrun::Recording;

use super::report::Report;
use super::timing::Timing;
use crate::failure::Failure;

impl Report {
    /// Times one of `calls` calls replayed from a recording, without the host's part; `None` where nothing can be recorded. Results
    /// stay alive within a recording.
    pub fn recorded<T>(
        &self,
        budget: f64,
        calls: usize,
        call: impl Fn() -> T,
    ) -> Result<Option<Timing>, Failure> {
        let preparation = match Recording::prepare(&self.device) {
            Ok(preparation) => preparation,
            Err(reason) => {
                tracing::debug!("no recorded calls: {reason}");
                return Ok(None);
            }
        };
        let wait = || {
            let done = self.device.sync();
            done.map_err(|error| Failure::Bug(error.to_string()))
        };
        let all = || (0..calls).map(|_| call()).collect::<Vec<T>>();
        for _ in 0..2 {
            drop(all());
            wait()?;
        }
        let (recording, kept) = preparation.record(all)?;
        let replay = || -> Result<(), Failure> {
            // SAFETY: what the calls read and write is alive.
            unsafe { recording.replay() }?;
            wait()
        };
        replay()?;
        let time = self.time(budget, || replay().expect("replayed before"));
        drop(kept);
        Ok(Some(time.divided(calls)))
    }
}
