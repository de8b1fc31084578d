//! lifecycle_msgs.

use super::messages;

messages! {
    State = "lifecycle_msgs/msg/State" { id: u8, label: String }
    Transition = "lifecycle_msgs/msg/Transition" { id: u8, label: String }
    TransitionDescription = "lifecycle_msgs/msg/TransitionDescription" {
        transition: Transition,
        start_state: State,
        goal_state: State,
    }
    TransitionEvent = "lifecycle_msgs/msg/TransitionEvent" {
        timestamp: u64,
        transition: Transition,
        start_state: State,
        goal_state: State,
    }
    ChangeStateRequest = "lifecycle_msgs/srv/ChangeState_Request" { transition: Transition }
    ChangeStateResponse = "lifecycle_msgs/srv/ChangeState_Response" { success: bool }
    GetStateResponse = "lifecycle_msgs/srv/GetState_Response" { current_state: State }
    GetAvailableStatesResponse = "lifecycle_msgs/srv/GetAvailableStates_Response" {
        available_states: Vec<State>,
    }
    GetAvailableTransitionsResponse = "lifecycle_msgs/srv/GetAvailableTransitions_Response" {
        available_transitions: Vec<TransitionDescription>,
    }
}
