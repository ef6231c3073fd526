//! Lane `ionic`: the driver against the device in one thread, without a transport.

mod common;

lane!(crate::common::Direct);

mod chaos {
    use crate::common::{Direct, chaos};

    #[test]
    fn guests_that_do_anything() {
        chaos::guests_that_do_anything::<Direct>(1500);
    }

    #[test]
    fn commands_are_commands() {
        chaos::commands_are_commands();
    }
}
