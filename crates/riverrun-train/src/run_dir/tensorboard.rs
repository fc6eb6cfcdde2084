//! Event files that TensorBoard reads.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use crc::{CRC_32_ISCSI, Crc};
use prost::Message;

use super::RunDir;
use super::files::write_atomic;
use crate::{Error, Report, Split};

/// TensorBoard reads files that have `tfevents` in their name.
pub(super) const NAME: &str = "events.out.tfevents.0.riverrun";

/// The reports of a run as an event file, `events.out.tfevents.0.riverrun` in its folder.
#[derive(Debug)]
pub(crate) struct Events {
    path: PathBuf,
    file: File,
    /// Unix time at which the run would have begun without its interruptions.
    began: f64,
}

impl Events {
    /// Starts the file of a run with the reports that it has, in the place of any before.
    ///
    /// # Errors
    /// A disk that is full or refuses.
    pub fn start(dir: &RunDir, reports: &[Report]) -> Result<Self, Error> {
        let path = dir.path.join(NAME);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_secs_f64();
        let began = now - reports.last().map_or(0.0, |report| report.seconds);
        let version = Event {
            wall_time: began,
            file_version: Some("brain.Event:2".into()),
            ..Event::default()
        };
        let mut bytes = record(&version);
        for report in reports {
            bytes.extend(record(&event(report, began)));
        }
        write_atomic(&path, &bytes)?;
        let file = OpenOptions::new().append(true).open(&path);
        let file = file.map_err(|error| Error::write(&path, error))?;
        Ok(Self { path, file, began })
    }

    /// Adds a report.
    ///
    /// # Errors
    /// A disk that is full or refuses.
    pub fn append(&mut self, report: &Report) -> Result<(), Error> {
        let written = self.file.write_all(&record(&event(report, self.began)));
        written.map_err(|error| Error::write(&self.path, error))
    }
}

/// Message `Event` of TensorFlow's `event.proto`.
#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

/// Message `Summary` of `summary.proto`.
#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

/// Message `Summary.Value`, a scalar.
#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

fn event(report: &Report, began: f64) -> Event {
    let split = report.split;
    let mut scalars = vec![
        (format!("loss/{split}"), report.loss),
        (format!("tokens_per_second/{split}"), report.tokens_per_s),
    ];
    scalars.extend(
        report
            .accuracy
            .map(|accuracy| (format!("accuracy/{split}"), accuracy)),
    );
    if split == Split::Train {
        scalars.push(("learning_rate".into(), report.lr));
        scalars.extend(report.gradient.map(|norm| ("gradient_norm".into(), norm)));
        let groups = report.gradients.iter();
        scalars.extend(groups.map(|(group, norm)| (format!("gradient_norm/{group}"), *norm)));
    }
    let value = |(tag, scalar): (String, f64)| Value {
        tag,
        simple_value: Some(scalar as f32),
    };
    Event {
        wall_time: began + report.seconds,
        step: i64::try_from(report.step).unwrap_or(i64::MAX),
        file_version: None,
        summary: Some(Summary {
            value: scalars.into_iter().map(value).collect(),
        }),
    }
}

/// A record of TensorFlow's file format: the length, its checksum, the event, its checksum.
fn record(event: &Event) -> Vec<u8> {
    let event = event.encode_to_vec();
    let length = (event.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(event.len() + 16);
    record.extend(length);
    record.extend(checksum(&length).to_le_bytes());
    record.extend(&event);
    record.extend(checksum(&event).to_le_bytes());
    record
}

/// The CRC-32C of bytes, masked as `record_writer.cc` does, so that a checksum of checksums is a good one too.
fn checksum(bytes: &[u8]) -> u32 {
    const CASTAGNOLI: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);
    let crc = CASTAGNOLI.checksum(bytes);
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From `tensorboard.compat.tensorflow_stub.pywrap_tensorflow.masked_crc32c`.
    #[test]
    fn checksums_are_tensorboards() {
        assert_eq!(
            checksum(&24u64.to_le_bytes()),
            u32::from_le_bytes([0xa3, 0x7f, 0x4b, 0x22])
        );
    }

    #[test]
    fn a_record_has_its_event_between_checksums() {
        let event = Event {
            wall_time: 1.5,
            step: 7,
            file_version: None,
            summary: Some(Summary {
                value: vec![Value {
                    tag: "loss/train".into(),
                    simple_value: Some(0.25),
                }],
            }),
        };
        let bytes = record(&event);
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        assert_eq!(bytes.len(), length + 16);
        assert_eq!(Event::decode(&bytes[12..12 + length]).unwrap(), event);
        // wall_time, step, and a summary with one value of a name and a float.
        let expected = [
            &[
                0x09, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f, 0x10, 7, 0x2a, 19, 0x0a, 17, 0x0a, 10,
            ][..],
            b"loss/train",
            &[0x15, 0, 0, 0x80, 0x3e],
        ];
        assert_eq!(bytes[12..12 + length], expected.concat());
    }
}
