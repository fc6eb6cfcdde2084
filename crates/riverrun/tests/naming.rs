//! Naming a device opens none. In a process of its own, for a device once open stays so.

use riverrun::device;

#[test]
fn devices_are_named_without_being_opened() {
    let all = device::list();
    for info in &all {
        let found = device::parse(&info.spec).expect("a device by its name");
        assert_eq!(found, info.device, "{}", info.spec);
        assert_eq!(device::name(&found.autodiff()), info.spec);
        assert_eq!(device::is_cpu(&info.device), info.spec == "cpu");
    }
    if let Some(hardware) = all.iter().find(|info| !info.software) {
        let auto = device::parse("auto").expect("a device");
        assert_eq!(auto, hardware.device, "the first that is not emulated");
    }
    for name in [
        "cpu:0",
        "cuda:9999",
        "cuda:-1",
        "vulkan:99999999999999999999",
        "gpu",
        "",
    ] {
        let error = device::parse(name).expect_err(name).to_string();
        assert!(error.contains(&format!("`{name}`")), "{error}");
        assert!(all.iter().all(|info| error.contains(&info.spec)), "{error}");
    }
    // The runtime reads its configuration when the first device is opened, and cannot be configured after that.
    #[cfg(feature = "cube")]
    {
        use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
        assert!(
            CubeClRuntimeConfig::try_set(CubeClRuntimeConfig::default()),
            "a device has been opened"
        );
    }
}
