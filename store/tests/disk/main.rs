//! The disk store from outside.
#![allow(clippy::cast_possible_truncation)]

mod alike;
mod basics;
mod damage;
mod full;
mod support;
