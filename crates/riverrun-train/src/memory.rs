//! Checks that a request fits into memory, before anything is allocated.

use burn::tensor::Device;

use crate::Error;

/// No device has more.
const MOST: u128 = 1 << 47;

/// Refuses a request that does not fit into a device's memory, if that is known.
///
/// # Errors
/// [`Error::Memory`].
pub(crate) fn check(what: &str, needed: u128, device: &Device) -> Result<(), Error> {
    let available = riverrun::device::memory(device).map(|memory| u128::from(memory.free));
    match available {
        Some(available) if needed <= available => Ok(()),
        None if needed <= MOST => Ok(()),
        available => Err(Error::Memory {
            what: what.into(),
            needed,
            device: riverrun::device::name(device),
            available,
        }),
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;

    #[test]
    fn what_no_machine_has_is_refused() {
        let device = riverrun::device::parse("cpu").unwrap();
        assert!(check("a model", 1 << 20, &device).is_ok());
        let error = check("a model", u128::MAX, &device).unwrap_err();
        assert!(matches!(error, Error::Memory { .. }), "{error}");
    }
}
