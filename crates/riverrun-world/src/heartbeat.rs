//! The heartbeats of one connection: both sides say regularly that they live, and notice when the other does not.

use crate::fate::Fate;
use crate::wire::{self, Pen, TICK};
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// The kind of a frame without content that only says that its sender lives.
pub(crate) const BEAT: u8 = 1;

/// Reads the frames of a connection and sends beats on it, until `hear` says that all is said, or the other side is lost.
/// Returns how it was lost: at once when its process ended, after `silence` when it is stopped or cut off.
pub(crate) fn attend(
    stream: &TcpStream,
    pen: &Pen,
    fate: &Fate,
    silence: Duration,
    mut hear: impl FnMut(u8, Vec<u8>) -> ControlFlow<()>,
) -> Option<String> {
    let pause = silence / 8;
    let mut sent: Option<Instant> = None;
    let (mut heard, mut looked) = (Instant::now(), Instant::now());
    loop {
        if sent.is_none_or(|sent| sent.elapsed() >= pause) {
            // A beat that cannot be sent proves nothing; reading does.
            let _ = pen.send(BEAT, &[]);
            sent = Some(Instant::now());
        }
        let came = wire::wait_readable(stream, pause.min(TICK));
        // Where this process stood still itself, the other's silence proves nothing.
        let gap = looked.elapsed();
        if gap > silence / 2 {
            fate.stood_still(gap);
            heard = Instant::now();
        }
        if came {
            // A frame that has begun is whole soon.
            match wire::read_frame(stream, wire::LONGEST, wire::after(silence)) {
                Ok((BEAT, _)) => {}
                Ok((kind, payload)) => {
                    if hear(kind, payload).is_break() {
                        return None;
                    }
                }
                Err(e) => return Some(e.to_string()),
            }
            heard = Instant::now();
        }
        looked = Instant::now();
        if heard.elapsed() > silence {
            return Some(format!(
                "nothing was heard of it for {:.1} s: it is stopped, or the network is cut",
                heard.elapsed().as_secs_f64()
            ));
        }
    }
}
