//! Calls: the caller's arrays are bound to an operation, whose numbers and sizes of buffers find its plan, which is made the
//! first time. A caller then gives the scratch memory and the stream.

mod cell;
mod recurrence;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

pub use cubecl::client::Client;
use cubecl::server::Handle;
use riverrun_kernels::Error;

use crate::{Guest, Ready, Refused};

pub use cell::{Cell, CellBack, cell, cell_back};
pub use recurrence::{Scan, ScanBack, View, scan, scan_back};

/// Plans that a device keeps. Beyond it all are made again as they are called.
const PLANS: usize = 4096;

/// Kernels read vectors of so many bytes.
const ALIGNMENT: usize = 16;

/// What finds a plan: the operation and its numbers.
type Key = (&'static str, Vec<u64>);

/// The plans of a device.
#[derive(Default)]
pub(crate) struct Plans(RwLock<HashMap<Key, Arc<Ready>>>);

impl Plans {
    fn find(&self, key: &Key) -> Option<Arc<Ready>> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.get(key).cloned()
    }

    fn keep(&self, key: Key, plan: Arc<Ready>) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= PLANS {
            all.clear();
        }
        all.insert(key, plan);
    }
}

/// A contiguous array on the device: the address of its first element, and the number of its elements.
#[derive(Debug, Clone, Copy)]
pub struct Array(pub usize, pub usize);

/// A buffer of a call.
#[derive(Debug, Clone, Copy)]
pub struct Slot(usize);

/// The buffers while a plan is made.
pub struct Handles<'a>(&'a [Handle]);

impl Handles<'_> {
    /// A buffer.
    pub fn at(&self, slot: Slot) -> Handle {
        self.0[slot.0].clone()
    }

    /// A buffer that may be absent.
    pub fn maybe(&self, slot: Option<Slot>) -> Option<Handle> {
        slot.map(|slot| self.at(slot))
    }
}

/// An operation, the numbers that shape it, and the buffers of the caller.
pub struct Call {
    key: Key,
    addresses: Vec<u64>,
    sizes: Vec<u64>,
    refused: Option<String>,
}

impl Call {
    /// A call without buffers. Two calls of an operation with equal numbers and sizes of buffers have the same plan.
    pub fn new(operation: &'static str, numbers: impl IntoIterator<Item = u64>) -> Self {
        Self {
            key: (operation, numbers.into_iter().collect()),
            addresses: Vec::with_capacity(16),
            sizes: Vec::with_capacity(16),
            refused: None,
        }
    }

    /// Adds numbers that shape the call.
    fn shaped(&mut self, numbers: impl IntoIterator<Item = u64>) {
        self.key.1.extend(numbers);
    }

    /// Refuses the call; the first reason counts.
    fn refuse(&mut self, reason: String) {
        self.refused.get_or_insert(reason);
    }

    /// Binds `bytes` at an address. The call is refused where it is not aligned.
    pub fn bytes(&mut self, address: usize, bytes: usize) -> Slot {
        if bytes > 0 && !address.is_multiple_of(ALIGNMENT) {
            self.refuse(format!(
                "an array at address {address:#x} is not aligned to {ALIGNMENT} bytes"
            ));
        }
        self.addresses.push(address as u64);
        self.sizes.push(bytes as u64);
        Slot(self.sizes.len() - 1)
    }

    /// Binds an array with elements of `size` bytes, as [`bytes`](Self::bytes) does.
    pub fn array(&mut self, array: impl Into<Array>, size: usize) -> Slot {
        let Array(address, elements) = array.into();
        self.bytes(address, elements.saturating_mul(size))
    }

    /// Binds an array that may be absent.
    pub fn maybe(&mut self, array: Option<impl Into<Array>>, size: usize) -> Option<Slot> {
        // Whether it is there is a part of the key.
        self.shaped([u64::from(array.is_some())]);
        array.map(|array| self.array(array, size))
    }

    /// The whole call; `record` launches it where it has no plan yet.
    pub fn recorded<R>(mut self, record: R) -> Request<R>
    where
        R: Fn(&Client, &Handles<'_>) -> Result<(), Error>,
    {
        self.key.1.extend(&self.sizes);
        Request { call: self, record }
    }
}

/// A call whose arrays are bound.
pub struct Request<R> {
    call: Call,
    record: R,
}

impl<R: Fn(&Client, &Handles<'_>) -> Result<(), Error>> Request<R> {
    /// The plan, if it has been made.
    ///
    /// # Errors
    /// [`Refused::Argument`].
    pub fn find(&self, guest: &Guest) -> Result<Option<Arc<Ready>>, Refused> {
        match &self.call.refused {
            Some(reason) => Err(Refused::Argument(reason.clone())),
            None => Ok(guest.plans().find(&self.call.key)),
        }
    }

    /// Makes the plan, as [`Guest::plan`] does, and keeps it.
    ///
    /// # Errors
    /// As [`Guest::plan`].
    pub fn make(&self, guest: &Guest) -> Result<Arc<Ready>, Refused> {
        let plan = guest.plan(&self.call.sizes, self.record())?;
        let plan = Arc::new(plan);
        guest.plans().keep(self.call.key.clone(), plan.clone());
        Ok(plan)
    }

    /// Sizes of the buffers, in bytes.
    pub fn sizes(&self) -> &[u64] {
        &self.call.sizes
    }

    /// Addresses of the buffers.
    pub fn addresses(&self) -> &[u64] {
        &self.call.addresses
    }

    /// What [`Recorder::plan`](crate::Recorder::plan) calls.
    pub fn record(&self) -> impl Fn(&Client, &[Handle]) -> Result<(), Error> {
        |client, handles| (self.record)(client, &Handles(handles))
    }

    /// Puts the launches of the plan on a stream, as [`Guest::run`] does.
    ///
    /// # Safety
    /// The plan is this call's; the rest as for [`Guest::run`].
    ///
    /// # Errors
    /// Those of the driver.
    pub unsafe fn run(
        &self,
        guest: &Guest,
        plan: &Ready,
        stream: u64,
        scratch: u64,
    ) -> Result<(), String> {
        // SAFETY: the caller's promise.
        unsafe { guest.run(plan, stream, &self.call.addresses, scratch) }
    }
}
