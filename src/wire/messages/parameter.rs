//! rcl_interfaces: parameters.

use super::{Time, messages};
use serde_bytes::ByteBuf;

/// `ParameterType`: no value.
pub const NOT_SET: u8 = 0;
/// `ParameterType`
pub const BOOL: u8 = 1;
/// `ParameterType`
pub const INTEGER: u8 = 2;
/// `ParameterType`
pub const DOUBLE: u8 = 3;
/// `ParameterType`
pub const STRING: u8 = 4;

messages! {
    ParameterValue = "rcl_interfaces/msg/ParameterValue" {
        kind as "type": u8,
        bool_value: bool,
        integer_value: i64,
        double_value: f64,
        string_value: String,
        byte_array_value: ByteBuf,
        bool_array_value: Vec<bool>,
        integer_array_value: Vec<i64>,
        double_array_value: Vec<f64>,
        string_array_value: Vec<String>,
    }
    Parameter = "rcl_interfaces/msg/Parameter" { name: String, value: ParameterValue }
    FloatingPointRange = "rcl_interfaces/msg/FloatingPointRange" {
        from_value: f64,
        to_value: f64,
        step: f64,
    }
    IntegerRange = "rcl_interfaces/msg/IntegerRange" { from_value: i64, to_value: i64, step: u64 }
    ParameterDescriptor = "rcl_interfaces/msg/ParameterDescriptor" {
        name: String,
        kind as "type": u8,
        description: String,
        additional_constraints: String,
        read_only: bool,
        dynamic_typing: bool,
        floating_point_range: Vec<FloatingPointRange>,
        integer_range: Vec<IntegerRange>,
    }
    SetParametersResult = "rcl_interfaces/msg/SetParametersResult" { successful: bool, reason: String }
    ListParametersResult = "rcl_interfaces/msg/ListParametersResult" {
        names: Vec<String>,
        prefixes: Vec<String>,
    }
    ParameterEvent = "rcl_interfaces/msg/ParameterEvent" {
        stamp: Time,
        node: String,
        new_parameters: Vec<Parameter>,
        changed_parameters: Vec<Parameter>,
        deleted_parameters: Vec<Parameter>,
    }
    GetParametersRequest = "rcl_interfaces/srv/GetParameters_Request" { names: Vec<String> }
    GetParametersResponse = "rcl_interfaces/srv/GetParameters_Response" { values: Vec<ParameterValue> }
    GetParameterTypesRequest = "rcl_interfaces/srv/GetParameterTypes_Request" { names: Vec<String> }
    GetParameterTypesResponse = "rcl_interfaces/srv/GetParameterTypes_Response" { types: ByteBuf }
    DescribeParametersRequest = "rcl_interfaces/srv/DescribeParameters_Request" { names: Vec<String> }
    DescribeParametersResponse = "rcl_interfaces/srv/DescribeParameters_Response" {
        descriptors: Vec<ParameterDescriptor>,
    }
    ListParametersRequest = "rcl_interfaces/srv/ListParameters_Request" {
        prefixes: Vec<String>,
        depth: u64,
    }
    ListParametersResponse = "rcl_interfaces/srv/ListParameters_Response" { result: ListParametersResult }
    SetParametersRequest = "rcl_interfaces/srv/SetParameters_Request" { parameters: Vec<Parameter> }
    SetParametersResponse = "rcl_interfaces/srv/SetParameters_Response" {
        results: Vec<SetParametersResult>,
    }
    SetParametersAtomicallyRequest = "rcl_interfaces/srv/SetParametersAtomically_Request" {
        parameters: Vec<Parameter>,
    }
    SetParametersAtomicallyResponse = "rcl_interfaces/srv/SetParametersAtomically_Response" {
        result: SetParametersResult,
    }
}
