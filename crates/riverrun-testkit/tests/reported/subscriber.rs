//! A subscriber of `tracing` that keeps what is reported to it.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};

/// Spans and events as lines: `span NAME field=value ...`, `event field=value ...`.
#[derive(Clone, Default)]
pub struct Reported(Arc<Mutex<Vec<String>>>);

impl Reported {
    /// What a call reports on this thread.
    pub fn by(call: impl FnOnce()) -> Vec<String> {
        let reported = Self::default();
        tracing::subscriber::with_default(reported.clone(), call);
        let lines = reported.0.lock().unwrap();
        lines.clone()
    }
}

/// A line that grows by each field.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl tracing::Subscriber for Reported {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        let mut line = Line(format!("span {}", span.metadata().name()));
        span.record(&mut line);
        let mut all = self.0.lock().unwrap();
        all.push(line.0);
        tracing::span::Id::from_u64(all.len() as u64)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line("event".into());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
