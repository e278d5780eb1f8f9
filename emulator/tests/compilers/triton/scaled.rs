//! References of `matmul.py`'s products with block scales.

use super::run;
use crate::compilers::scaled::scaled_products;

scaled_products! { run;
    mxfp8: Eight(E4m3), Eight(E4m3), Ue8m0, 32, (128, 128, 256), false, 1e-6;
    mxfp8_fp4: Eight(E4m3), E2m1, Ue8m0, 32, (128, 128, 256), false, 1e-6;
    mxfp4: E2m1, E2m1, Ue8m0, 32, (128, 128, 256), false, 1e-6;
    nvfp4: E2m1, E2m1, Ue4m3, 16, (128, 128, 256), false, 1e-6;
    mxfp8_upcast: Eight(E4m3), Eight(E5m2), Ue8m0, 32, (64, 32, 128), false, 1e-6;
    mxfp4_upcast: E2m1, E2m1, Ue8m0, 32, (64, 32, 128), false, 1e-6;
    mxfp8_tma: Eight(E4m3), Eight(E4m3), Ue8m0, 32, (128, 128, 512), true, 1e-6;
    mxfp4_tma: E2m1, E2m1, Ue8m0, 32, (128, 128, 512), true, 1e-6;
    nvfp4_tma: E2m1, E2m1, Ue4m3, 16, (256, 128, 512), true, 1e-6;
}
