//! The table of operations.

use crate::{Case, CpuElement, Failure, Report, Row, Storage, Target, Tensors, judge};

/// An operation and its check.
pub struct Operation {
    /// The name on the command line.
    pub name: &'static str,
    /// What is checked, in a line.
    pub about: &'static str,
    /// The storage types that it has on the CPU; on a GPU f64 is left out.
    pub storages: &'static [Storage],
    /// The forms that it has on a device, each a part; empty if the device does not support the operation.
    pub forms: fn(&Target) -> Vec<&'static str>,
    /// Checks one part and reports its rows. Skips unsupported cases, with the reason.
    pub check: fn(&Part<'_>, &mut dyn Report) -> Result<(), Failure>,
    /// The relative time of a part on a GPU; the longest start first.
    pub weight: u32,
    /// Two storage types whose kernels are nearly the same: on a GPU every other form is checked in the first, the rest in the
    /// second, unless a type, a form or long problems are asked for.
    pub shared: Option<[Storage; 2]>,
    /// The problems that only a long run checks.
    pub long: Option<&'static str>,
}

/// The operations, in the order of reports.
pub const OPERATIONS: &[&Operation] = &[
    &crate::recurrence::OPERATION,
    #[cfg(feature = "ops")]
    &crate::recurrence::recompute::OPERATION,
    #[cfg(feature = "ops")]
    &crate::recurrence::second_derivative::OPERATION,
    &crate::block_diagonal::OPERATION,
    &crate::matrix_state::OPERATION,
    &crate::cell::OPERATION,
    &crate::norm::OPERATION,
    &crate::activation::OPERATION,
    &crate::loss::OPERATION,
    &crate::embedding::OPERATION,
    &crate::attention::OPERATION,
    &crate::attention::step::OPERATION,
    &crate::short_convolution::OPERATION,
    &crate::column_sums::OPERATION,
    &crate::log_decay::OPERATION,
    &crate::rg_lru::OPERATION,
    &crate::optimizer::OPERATION,
    &crate::few_rows::OPERATION,
    &crate::delta_step::OPERATION,
    &crate::draw::OPERATION,
    #[cfg(feature = "ops")]
    &crate::gemm::OPERATION,
    #[cfg(feature = "ops")]
    &crate::refill::OPERATION,
    &crate::rollout::OPERATION,
    &crate::encoder::OPERATION,
    #[cfg(feature = "ops")]
    &crate::rssm::OPERATION,
];

/// A part of the work: an operation in one storage type and form.
pub struct Part<'a> {
    /// The device.
    pub target: &'a Target,
    /// The operation.
    pub operation: &'static Operation,
    /// The storage type.
    pub storage: Storage,
    /// A gate, a cell, ...
    pub form: &'static str,
    /// Whether the long problems are checked too.
    pub long: bool,
}

impl Part<'_> {
    /// What is checked: the operation, its form where it has several, and the storage type.
    pub fn name(&self) -> String {
        let op = self.operation.name;
        match self.form == op {
            true => format!("{op} {}", self.storage.name()),
            false => format!("{op} {} {}", self.form, self.storage.name()),
        }
    }

    /// The name of the device.
    pub fn device(&self) -> &str {
        &self.target.name
    }

    /// Runs problems, rounded to `E`, by the kernels of the device, and reports the worst of them as one row.
    ///
    /// # Errors
    /// The errors of the kernels and of the report.
    pub fn run_all<E: CpuElement, C: Case>(
        &self,
        what: &str,
        cases: impl IntoIterator<Item = C>,
        report: &mut dyn Report,
    ) -> Result<(), Failure> {
        let run = |case: &C| case.run::<E>(self.target);
        self.run_by::<E, _, _>(what, self.target.routine(), cases, run, report)
    }

    /// Runs problems, rounded to `E`, by the operation on tensors, and reports the worst of them as one row.
    ///
    /// # Errors
    /// The errors of the operation and of the report.
    #[cfg(feature = "ops")]
    pub fn run_ops<E: CpuElement, C: Case>(
        &self,
        what: &str,
        cases: impl IntoIterator<Item = C>,
        report: &mut dyn Report,
    ) -> Result<(), Failure> {
        let place = crate::op::Place::new(&self.target.device, self.storage);
        self.run_by::<E, _, _>(what, "op", cases, |case: &C| case.op::<E>(&place), report)
    }

    /// Runs problems, rounded to `E`, by a form, and reports the worst of them as one row.
    ///
    /// # Errors
    /// The errors of the form and of the report.
    pub fn run_by<E: CpuElement, C: Case, F: Into<Failure>>(
        &self,
        what: &str,
        form: &str,
        cases: impl IntoIterator<Item = C>,
        mut run: impl FnMut(&C) -> Result<Tensors, F>,
        report: &mut dyn Report,
    ) -> Result<(), Failure> {
        let mut row = Row::default();
        for case in cases {
            let case = case.rounded::<E>();
            row.add(&judge::<E, _>(&case, || run(&case)).map_err(Into::into)?);
        }
        report.row(self.device(), what, E::NAME, form, row)
    }

    /// The client that launches kernels, with the storage type; `None` on the CPU.
    #[cfg(feature = "gpu")]
    pub fn gpu(&self) -> Option<(&cubecl::client::Client, riverrun_kernels::gpu::Dtype)> {
        self.target.client.as_ref().zip(self.storage.on_gpu())
    }
}

/// Checks every part of an operation that the device has, for tests.
///
/// # Panics
/// If a row is wrong, if a check fails, and if forms are there and nothing was checked.
pub fn assert_right(operation: &'static Operation, target: &Target) {
    let name = operation.name;
    let forms = (operation.forms)(target);
    if forms.is_empty() {
        println!(
            "skipped: {name} has no form on {} in this build",
            target.name
        );
        return;
    }
    let mut rows = Asserted(0);
    for form in forms {
        for &storage in operation.storages {
            if !target.may_have(storage) || !target.supports(storage) {
                let (dtype, device) = (storage.name(), &target.name);
                println!("skipped: {name} {form} in {dtype} is not supported on {device}");
                continue;
            }
            let part = Part {
                target,
                operation,
                storage,
                form,
                long: false,
            };
            if let Err(error) = (operation.check)(&part, &mut rows) {
                panic!("{name} {form} {}: {}", storage.name(), error.0);
            }
        }
    }
    assert!(rows.0 > 0, "{name}: nothing was checked");
}

/// Counts rows, all of which are right.
struct Asserted(usize);

impl Report for Asserted {
    fn row(
        &mut self,
        device: &str,
        what: &str,
        dtype: &str,
        routine: &str,
        row: Row,
    ) -> Result<(), Failure> {
        assert!(row.passes(), "{device} {what} {dtype} {routine}: {row:?}");
        self.0 += 1;
        Ok(())
    }

    fn skip(&mut self, device: &str, what: &str, reason: &str) -> Result<(), Failure> {
        println!("skipped: {what} on {device}: {reason}");
        Ok(())
    }

    fn fail(&mut self, device: &str, what: &str, reason: &str) -> Result<(), Failure> {
        panic!("{device} {what}: {reason}");
    }
}
