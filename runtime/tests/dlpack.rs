//! Tensors of other libraries on the emulated device, and ours for them; wrong ones are refused, and their deleters called once.

use silumin_codegen::arch::Arch;
use silumin_runtime::device::{Device, Stream};
use silumin_runtime::dlpack::abi::{
    BFLOAT, CPU, CUDA, DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion,
    DLTensor, FLOAT, FLOAT4_E2M1FN, FLOAT8_E4M3FN, READ_ONLY, UINT, VERSION,
};
use silumin_runtime::dlpack::{Abi, DlpackError, Managed, RawManaged, export, import};
use silumin_runtime::tensor::{E4m3, Matrix, Nvfp4, TensorError, bf16, f16};
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A tensor of another library.
struct Foreign {
    data: Vec<u8>,
    shape: Vec<i64>,
    strides: Option<Vec<i64>>,
    dtype: DLDataType,
    device: DLDevice,
    byte_offset: u64,
    flags: u64,
    version: DLPackVersion,
    /// Calls of the deleter.
    deleted: Arc<AtomicUsize>,
}

const fn dtype(code: u8, bits: u8) -> DLDataType {
    DLDataType { code, bits, lanes: 1 }
}

impl Foreign {
    fn new(data: Vec<u8>, shape: &[i64], dtype: DLDataType) -> Self {
        Self {
            data,
            shape: shape.to_vec(),
            strides: None,
            dtype,
            device: DLDevice { device_type: CPU, device_id: 0 },
            byte_offset: 0,
            flags: 0,
            version: VERSION,
            deleted: Arc::default(),
        }
    }

    fn tensor(&mut self) -> DLTensor {
        let data = if self.data.is_empty() { ptr::null_mut() } else { self.data.as_mut_ptr().cast() };
        DLTensor {
            data,
            device: self.device,
            ndim: self.shape.len() as i32,
            dtype: self.dtype,
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut().map_or(ptr::null_mut(), |strides| strides.as_mut_ptr()),
            byte_offset: self.byte_offset,
        }
    }

    fn versioned(self) -> Result<Managed, DlpackError> {
        let mut foreign = Box::new(self);
        let dl_tensor = foreign.tensor();
        let (version, flags) = (foreign.version, foreign.flags);
        let manager_ctx = Box::into_raw(foreign).cast();
        let deleter: unsafe extern "C" fn(*mut DLManagedTensorVersioned) = delete_versioned;
        let managed =
            DLManagedTensorVersioned { version, manager_ctx, deleter: Some(deleter), flags, dl_tensor };
        let raw = RawManaged::Versioned(NonNull::from(Box::leak(Box::new(managed))));
        // SAFETY: all of it lives until the deleter is called.
        unsafe { Managed::from_raw(raw) }
    }

    fn unversioned(self) -> Managed {
        let mut foreign = Box::new(self);
        let dl_tensor = foreign.tensor();
        let manager_ctx = Box::into_raw(foreign).cast();
        let deleter: unsafe extern "C" fn(*mut DLManagedTensor) = delete_unversioned;
        let managed = DLManagedTensor { dl_tensor, manager_ctx, deleter: Some(deleter) };
        let raw = RawManaged::Unversioned(NonNull::from(Box::leak(Box::new(managed))));
        // SAFETY: all of it lives until the deleter is called.
        unsafe { Managed::from_raw(raw) }.unwrap()
    }
}

unsafe extern "C" fn delete_versioned(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: `versioned` leaked both.
    let foreign = unsafe { Box::from_raw(Box::from_raw(managed).manager_ctx.cast::<Foreign>()) };
    foreign.deleted.fetch_add(1, Ordering::Relaxed);
}

unsafe extern "C" fn delete_unversioned(managed: *mut DLManagedTensor) {
    // SAFETY: `unversioned` leaked both.
    let foreign = unsafe { Box::from_raw(Box::from_raw(managed).manager_ctx.cast::<Foreign>()) };
    foreign.deleted.fetch_add(1, Ordering::Relaxed);
}

fn stream() -> Stream {
    Device::emulated(Arch::Sm90a).stream()
}

fn halves() -> Foreign {
    let bytes = [1.0, -2.0, 0.5, 3.0, 4.0, 5.0].map(|value| f16::from_f32(value).to_le_bytes());
    Foreign::new(bytes.concat(), &[2, 3], dtype(FLOAT, 16))
}

#[test]
fn tensors_of_both_structs_are_read_and_deleted_once() {
    let stream = stream();
    let (one, other) = (halves(), halves());
    let deleted = [one.deleted.clone(), other.deleted.clone()];
    for managed in [one.versioned().unwrap(), other.unversioned()] {
        let matrix = Matrix::<f16>::from_dlpack(managed, &stream).unwrap();
        assert_eq!((matrix.rows(), matrix.columns()), (2, 3));
        assert_eq!(matrix.to_f32().unwrap(), [1.0, -2.0, 0.5, 3.0, 4.0, 5.0]);
    }
    assert_eq!(deleted.map(|count| count.load(Ordering::Relaxed)), [1, 1]);
    // What nobody imports is deleted, too.
    let unused = halves();
    let deleted = unused.deleted.clone();
    drop(unused.versioned().unwrap());
    assert_eq!(deleted.load(Ordering::Relaxed), 1);
}

#[test]
fn views_start_where_they_say() {
    let mut view = halves();
    (view.shape, view.byte_offset, view.flags) = (vec![1, 3], 6, READ_ONLY);
    // A dimension of one element has any stride.
    view.strides = Some(vec![99, 1]);
    let matrix = Matrix::<f16>::from_dlpack(view.versioned().unwrap(), &stream()).unwrap();
    assert_eq!(matrix.to_f32().unwrap(), [3.0, 4.0, 5.0]);
    assert!(matrix.is_read_only());
    assert_eq!(matrix.write(&[f16::ONE; 3]), Err(TensorError::ReadOnly));
    let mut row = halves();
    row.shape = vec![6];
    assert_eq!(import(row.versioned().unwrap(), &stream()).unwrap().shape, [6]);
}

#[test]
fn fp8_and_fp4_come_as_bytes_or_by_name() {
    let stream = stream();
    for kind in [dtype(UINT, 8), dtype(FLOAT8_E4M3FN, 8)] {
        let tensor = Foreign::new(vec![0x38, 0xC0], &[1, 2], kind).versioned().unwrap();
        assert_eq!(Matrix::<E4m3>::from_dlpack(tensor, &stream).unwrap().to_f32().unwrap(), [1.0, -2.0]);
    }
    let scales = || Foreign::new(vec![0x38; 512], &[128, 4], dtype(FLOAT8_E4M3FN, 8)).versioned().unwrap();
    let pair = DLDataType { code: FLOAT4_E2M1FN, bits: 4, lanes: 2 };
    for (kind, columns) in [(dtype(UINT, 8), 8), (pair, 8), (dtype(FLOAT4_E2M1FN, 4), 16)] {
        let codes = Foreign::new(vec![0x52; 8], &[1, columns], kind).versioned().unwrap();
        let matrix = Matrix::<Nvfp4>::from_dlpack(codes, scales(), 0.5, &stream).unwrap();
        assert_eq!(matrix.to_f32().unwrap(), [0.5, 1.5].repeat(8));
    }
    let short = Foreign::new(vec![0x38; 4], &[4], dtype(UINT, 8)).versioned().unwrap();
    let codes = Foreign::new(vec![0; 8], &[1, 8], dtype(UINT, 8)).versioned().unwrap();
    let error = Matrix::<Nvfp4>::from_dlpack(codes, short, 1.0, &stream).unwrap_err().to_string();
    assert!(error.contains("512 bytes of NVFP4 scale factors, and 4 were given"), "{error}");
}

#[test]
fn wrong_tensors_are_refused_and_deleted() {
    let refused = |change: fn(&mut Foreign)| {
        let mut foreign = halves();
        change(&mut foreign);
        let deleted = foreign.deleted.clone();
        let error = foreign
            .versioned()
            .and_then(|managed| Matrix::<f16>::from_dlpack(managed, &stream()).map(drop))
            .unwrap_err();
        assert_eq!(deleted.load(Ordering::Relaxed), 1, "{error}");
        error
    };
    let says = |change: fn(&mut Foreign), words: &[&str]| {
        let text = refused(change).to_string();
        words.iter().for_each(|word| assert!(text.contains(word), "{text}: {word}"));
    };
    says(|t| t.strides = Some(vec![1, 2]), &["dimension 1", "stride 2", "has 1", "contiguous"]);
    says(|t| t.strides = Some(vec![4, 1]), &["dimension 0", "stride 4", "has 3"]);
    says(|t| t.device.device_type = CUDA, &["on GPU 0", "emulated sm_90a", "copy it"]);
    says(|t| t.device.device_type = 8, &["DLPack's kind 8"]);
    says(|t| t.dtype = dtype(BFLOAT, 16), &["bfloat16", "in place of f16"]);
    says(|t| t.dtype.lanes = 2, &["float16 in 2 lanes", "1 lane"]);
    says(|t| t.dtype = dtype(99, 3), &["kind 99"]);
    says(|t| t.shape = vec![6], &["rank is 1", "2"]);
    says(|t| t.shape = vec![1, 2, 3], &["rank is 3"]);
    says(|t| t.shape = vec![2, -3], &["dimension 1", "size -3"]);
    says(|t| t.shape = vec![0, 3], &["dimension 0", "size 0"]);
    says(|t| t.shape = vec![i64::MAX, i64::MAX], &["size"]);
    says(|t| t.shape = vec![i64::MAX / 16, 8], &["size"]);
    says(|t| t.data.clear(), &["data is null"]);
    says(|t| t.version.major = 2, &["DLPack 2.1", "max_version=(1, 1)"]);
    // SAFETY: null is allowed.
    let null = unsafe { Managed::from_address(ptr::null_mut(), Abi::Versioned) };
    assert!(matches!(null, Err(DlpackError::Null { .. })));
}

#[test]
fn matrices_are_handed_out() {
    let device = Device::emulated(Arch::Sm100a);
    let matrix = Matrix::<bf16>::upload(&device, &[1.0, 2.0, 3.0, 4.0], 2, 2).unwrap();
    for abi in [Abi::Unversioned, Abi::Versioned] {
        let managed = matrix.to_dlpack(&device.stream(), abi).unwrap();
        let back = Matrix::<bf16>::from_dlpack(managed, &device.stream()).unwrap();
        assert_eq!(back.to_f32().unwrap(), [1.0, 2.0, 3.0, 4.0]);
    }
    // As another library would: by the struct alone.
    match matrix.to_dlpack(&device.stream(), Abi::Versioned).unwrap().into_raw() {
        RawManaged::Versioned(managed) => {
            // SAFETY: the struct is the other library's now, here this test's.
            unsafe {
                let tensor = &managed.as_ref().dl_tensor;
                let strides = std::slice::from_raw_parts(tensor.strides, 2);
                assert_eq!((strides, tensor.dtype), (&[2i64, 1][..], dtype(BFLOAT, 16)));
                assert!(!tensor.data.is_null() && tensor.data.addr().is_multiple_of(16));
                (managed.as_ref().deleter.unwrap())(managed.as_ptr());
            }
        }
        RawManaged::Unversioned(_) => panic!("the other struct was asked for"),
    }
    let packed = Matrix::<Nvfp4>::upload(&device, &[1.0; 32], 2, 16).unwrap();
    let codes = packed.to_dlpack(&device.stream(), Abi::Versioned).unwrap();
    let scales = export(packed.scales().unwrap(), &device.stream(), Abi::Unversioned).unwrap();
    let back = Matrix::<Nvfp4>::from_dlpack(codes, scales, packed.tensor_scale(), &device.stream()).unwrap();
    assert_eq!(back.to_host().unwrap(), packed.to_host().unwrap());

    assert!(matches!(matrix.to_dlpack(&stream(), Abi::Versioned), Err(DlpackError::Memory(_))));
    let blank = Matrix::<f16>::uninitialised(&device, 1, 1).unwrap();
    assert!(matches!(blank.to_dlpack(&device.stream(), Abi::Versioned), Err(DlpackError::Memory(_))));
}

/// The layout of the C structs on 64-bit platforms, by hand from `dlpack.h`.
#[test]
fn structs_have_the_layout_of_c() {
    use std::mem::offset_of;
    assert_eq!((size_of::<DLDevice>(), size_of::<DLDataType>(), size_of::<DLTensor>()), (8, 4, 48));
    assert_eq!(offset_of!(DLTensor, dtype), 20);
    assert_eq!(offset_of!(DLTensor, byte_offset), 40);
    assert_eq!(offset_of!(DLManagedTensor, manager_ctx), 48);
    assert_eq!(offset_of!(DLManagedTensorVersioned, flags), 24);
    assert_eq!(offset_of!(DLManagedTensorVersioned, dl_tensor), 32);
    assert_eq!(size_of::<*mut c_void>(), 8);
}
