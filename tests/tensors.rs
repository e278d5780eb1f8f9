//! Typed matrices and DLPack through the CUDA back end, here on the emulated driver.

use silumin::runtime::dlpack::abi::{CUDA, DLManagedTensorVersioned};
use silumin::runtime::dlpack::{Abi, DlpackError, Managed, RawManaged};
use silumin::runtime::tensor::bf16;
use silumin::{Arch, Device, Matrix, Shape, gemm};
use silumin_testkit::driver::{role, run};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The deleter of the tensor under test, and its calls.
static CALLS: AtomicUsize = AtomicUsize::new(0);
static THEIRS: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn count(managed: *mut DLManagedTensorVersioned) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: it is the deleter that the struct had, which `counted` has kept.
    unsafe {
        let deleter: unsafe extern "C" fn(*mut DLManagedTensorVersioned) =
            std::mem::transmute(THEIRS.load(Ordering::Relaxed));
        deleter(managed);
    }
}

/// A tensor whose deleter counts its calls, after a change.
fn counted(managed: Managed, change: impl FnOnce(&mut DLManagedTensorVersioned)) -> Managed {
    let RawManaged::Versioned(mut raw) = managed.into_raw() else { panic!("it is versioned") };
    // SAFETY: the tensor is this function's own.
    let tensor = unsafe { raw.as_mut() };
    THEIRS.store(tensor.deleter.unwrap() as usize, Ordering::Relaxed);
    tensor.deleter = Some(count);
    change(tensor);
    // SAFETY: as above; the test changes one field.
    unsafe { Managed::from_raw(RawManaged::Versioned(raw)) }.unwrap()
}

#[test]
fn memory_of_a_gpu_is_borrowed_and_lent() {
    const NAME: &str = "memory_of_a_gpu_is_borrowed_and_lent";
    if role().is_none() {
        run(module_path!(), NAME, "child", &[("SILUMIN_EMULATED_CHIP", "sm_90a")]);
        return;
    }
    let (device, (m, n, k)) = (Device::cuda(0).unwrap(), (3, 8, 64));
    let (stream, other) = (device.stream(), device.new_stream().unwrap());
    let a = Matrix::<bf16>::upload(&device, &vec![0.5; m * k], m, k).unwrap();
    let b = Matrix::<bf16>::upload(&device, &vec![0.25; n * k], n, k).unwrap();
    let c = Matrix::<bf16>::zeros(&device, m, n).unwrap();
    let lent = |matrix: &Matrix<bf16>| counted(matrix.to_dlpack(&stream, Abi::Versioned).unwrap(), |_| {});

    let theirs = lent(&c);
    let borrowed = Matrix::<bf16>::from_dlpack(theirs, &stream).unwrap();
    assert_eq!(borrowed.buffer().cuda_address(), c.buffer().cuda_address());
    let kernel = gemm!(<bf16 -> bf16> A @ B).load(&device, Shape::new(3, 8, 64)).unwrap();
    // On another stream, too, which is ordered behind the first.
    for stream in [&stream, &other] {
        kernel.launch(stream, &kernel.gemm_args(&a, &b, &borrowed).unwrap()).unwrap();
    }
    let view = borrowed.clone();
    drop(borrowed);
    assert_eq!(CALLS.load(Ordering::Relaxed), 0, "a handle lives");
    assert_eq!(view.to_f32().unwrap(), [8.0; 24]);
    drop(view);
    assert_eq!(CALLS.load(Ordering::Relaxed), 1);
    assert_eq!(c.to_f32().unwrap(), [8.0; 24], "a lent matrix is still ours");

    // The memory lives as long as the other library's tensor.
    let theirs = lent(&c);
    drop(c);
    assert_eq!(Matrix::<bf16>::from_dlpack(theirs, &other).unwrap().to_f32().unwrap(), [8.0; 24]);
    assert_eq!(CALLS.load(Ordering::Relaxed), 2);

    // Wrong tensors are refused, and deleted.
    let refused = |change: fn(&mut DLManagedTensorVersioned)| {
        let calls = CALLS.load(Ordering::Relaxed);
        let tensor = counted(a.to_dlpack(&stream, Abi::Versioned).unwrap(), change);
        let error = Matrix::<bf16>::from_dlpack(tensor, &stream).unwrap_err();
        assert_eq!(CALLS.load(Ordering::Relaxed), calls + 1, "{error}");
        error
    };
    let error = refused(|tensor| tensor.dl_tensor.byte_offset = 8).to_string();
    assert!(error.contains("multiples of 16") && error.contains("memory of its own"), "{error}");
    let error = refused(|tensor| tensor.dl_tensor.device.device_id = 1).to_string();
    assert!(error.contains("on GPU 1") && error.contains("emulated sm_90a"), "{error}");
    let error = refused(|tensor| tensor.dl_tensor.device.device_type = 1).to_string();
    assert!(error.contains("the CPU") && error.contains("copy it to the GPU first"), "{error}");
    let emulated = Device::emulated(Arch::Sm90a);
    let tensor = counted(a.to_dlpack(&stream, Abi::Versioned).unwrap(), |tensor| {
        assert_eq!(tensor.dl_tensor.device.device_type, CUDA);
    });
    let error = Matrix::<bf16>::from_dlpack(tensor, &emulated.stream()).unwrap_err();
    assert!(matches!(error, DlpackError::Device { .. }), "{error}");
    let tensor = counted(a.to_dlpack(&stream, Abi::Versioned).unwrap(), |tensor| tensor.flags |= 1);
    let read_only = Matrix::<bf16>::from_dlpack(tensor, &stream).unwrap();
    let as_c = gemm!(<bf16 -> bf16> A @ B).load(&device, Shape::new(3, 64, 64)).unwrap();
    let square = Matrix::<bf16>::zeros(&device, 64, 64).unwrap();
    let error = as_c.gemm_args(&a, &square, &read_only).unwrap_err().to_string();
    assert!(error.contains("read-only"), "{error}");
}
