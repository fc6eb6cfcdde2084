//! The numbers of cuDNN's graph interface, by the names of its header `cudnn_graph.h` without their prefixes.

/// `cudnnBackendDescriptorType_t`.
pub(super) mod descriptor {
    pub const POINTWISE: u32 = 0;
    pub const ENGINECFG: u32 = 3;
    pub const ENGINEHEUR: u32 = 4;
    pub const EXECUTION_PLAN: u32 = 5;
    pub const OPERATION_POINTWISE: u32 = 13;
    pub const OPERATIONGRAPH: u32 = 15;
    pub const VARIANT_PACK: u32 = 16;
    pub const TENSOR: u32 = 17;
    pub const MATMUL: u32 = 18;
    pub const OPERATION_MATMUL: u32 = 19;
    pub const REDUCTION: u32 = 21;
    pub const OPERATION_REDUCTION: u32 = 22;
    pub const OPERATION_RESHAPE: u32 = 31;
}

/// `cudnnBackendAttributeType_t`.
pub(super) mod kind {
    pub const HANDLE: u32 = 0;
    pub const DATA_TYPE: u32 = 1;
    pub const BOOLEAN: u32 = 2;
    pub const INT64: u32 = 3;
    pub const FLOAT: u32 = 4;
    pub const VOID_PTR: u32 = 6;
    pub const HEUR_MODE: u32 = 8;
    pub const POINTWISE_MODE: u32 = 14;
    pub const BACKEND_DESCRIPTOR: u32 = 15;
    pub const REDUCTION_OPERATOR: u32 = 18;
}

/// `cudnnBackendAttributeName_t`.
pub(super) mod attribute {
    pub const POINTWISE_MODE: u32 = 0;
    pub const POINTWISE_MATH_PREC: u32 = 1;
    pub const POINTWISE_AXIS: u32 = 9;
    pub const ENGINEHEUR_MODE: u32 = 200;
    pub const ENGINEHEUR_OPERATION_GRAPH: u32 = 201;
    pub const ENGINEHEUR_RESULTS: u32 = 202;
    pub const EXECUTION_PLAN_HANDLE: u32 = 400;
    pub const EXECUTION_PLAN_ENGINE_CONFIG: u32 = 401;
    pub const EXECUTION_PLAN_WORKSPACE_SIZE: u32 = 402;
    pub const OPERATION_POINTWISE_PW_DESCRIPTOR: u32 = 750;
    pub const OPERATION_POINTWISE_XDESC: u32 = 751;
    pub const OPERATION_POINTWISE_BDESC: u32 = 752;
    pub const OPERATION_POINTWISE_YDESC: u32 = 753;
    pub const OPERATION_POINTWISE_ALPHA1: u32 = 754;
    pub const OPERATION_POINTWISE_ALPHA2: u32 = 755;
    pub const OPERATION_POINTWISE_TDESC: u32 = 758;
    pub const OPERATIONGRAPH_HANDLE: u32 = 800;
    pub const OPERATIONGRAPH_OPS: u32 = 801;
    pub const TENSOR_BYTE_ALIGNMENT: u32 = 900;
    pub const TENSOR_DATA_TYPE: u32 = 901;
    pub const TENSOR_DIMENSIONS: u32 = 902;
    pub const TENSOR_STRIDES: u32 = 903;
    pub const TENSOR_UNIQUE_ID: u32 = 906;
    pub const TENSOR_IS_VIRTUAL: u32 = 907;
    pub const TENSOR_IS_BY_VALUE: u32 = 908;
    pub const VARIANT_PACK_UNIQUE_IDS: u32 = 1000;
    pub const VARIANT_PACK_DATA_POINTERS: u32 = 1001;
    pub const VARIANT_PACK_WORKSPACE: u32 = 1003;
    pub const MATMUL_COMP_TYPE: u32 = 1500;
    pub const OPERATION_MATMUL_ADESC: u32 = 1520;
    pub const OPERATION_MATMUL_BDESC: u32 = 1521;
    pub const OPERATION_MATMUL_CDESC: u32 = 1522;
    pub const OPERATION_MATMUL_DESC: u32 = 1523;
    pub const REDUCTION_OPERATOR: u32 = 1600;
    pub const REDUCTION_COMP_TYPE: u32 = 1601;
    pub const OPERATION_REDUCTION_XDESC: u32 = 1610;
    pub const OPERATION_REDUCTION_YDESC: u32 = 1611;
    pub const OPERATION_REDUCTION_DESC: u32 = 1612;
    pub const OPERATION_RESHAPE_XDESC: u32 = 2200;
    pub const OPERATION_RESHAPE_YDESC: u32 = 2201;
}

/// `cudnnDataType_t`.
pub(super) mod data {
    pub const FLOAT: u32 = 0;
    pub const HALF: u32 = 2;
    pub const INT32: u32 = 4;
    pub const BFLOAT16: u32 = 9;
    pub const BOOLEAN: u32 = 11;
}

/// `cudnnPointwiseMode_t`.
pub(super) mod pointwise {
    pub const ADD: u32 = 0;
    pub const MUL: u32 = 1;
    pub const DIV: u32 = 6;
    pub const SUB: u32 = 9;
    pub const EXP: u32 = 13;
    pub const LOG: u32 = 15;
    pub const IDENTITY: u32 = 21;
    pub const CMP_GT: u32 = 302;
    pub const CMP_GE: u32 = 303;
    pub const GEN_INDEX: u32 = 501;
    pub const BINARY_SELECT: u32 = 601;
}

/// `cudnnReduceTensorOp_t`.
pub(super) mod reduce {
    pub const ADD: u32 = 0;
    pub const MAX: u32 = 3;
}

/// `cudnnBackendHeurMode_t`.
pub(super) mod heuristics {
    pub const FALLBACK: u32 = 2;
    pub const MODE_A: u32 = 3;
}
