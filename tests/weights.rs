//! `examples/model_load.rs` on every kind of device, and what it says of what is not there.

#[allow(dead_code)]
#[path = "../examples/model_load/main.rs"]
mod model_load;

use model_load::{device, given, made_up};
use silumin_testkit::driver;
use std::path::Path;

#[test]
fn layers_of_both_conventions_are_right_on_emulated_devices() {
    for name in ["emulated", "emulated:sm_90a", "emulated:sm_103a"] {
        assert!(made_up(&device(name).unwrap(), &[1, 5]).unwrap(), "{name}");
    }
}

fn on_the_driver(test: &str, chip: &str) {
    match driver::role() {
        Some(_) => assert!(made_up(&device("cuda:0").unwrap(), &[3]).unwrap()),
        None => drop(driver::run(module_path!(), test, "load", &[("SILUMIN_EMULATED_CHIP", chip)])),
    }
}

#[test]
fn layers_are_right_through_the_driver_of_blackwell() {
    on_the_driver("layers_are_right_through_the_driver_of_blackwell", "sm_100a");
}

#[test]
fn layers_are_right_through_the_driver_of_hopper() {
    on_the_driver("layers_are_right_through_the_driver_of_hopper", "sm_90a");
}

#[test]
fn what_is_not_there_is_an_error() {
    let emulated = device("emulated").unwrap();
    let error = given(&emulated, Path::new("/no such folder"), None, &[1]).unwrap_err().to_string();
    assert!(error.contains("/no such folder"), "{error}");
    assert!(device("abacus").unwrap_err().to_string().contains("emulated, emulated:sm_90a or cuda:0"));
}
