//! Seeded simulation of holders that behave as Envoy does, and of everything that can happen to
//! their messages. A judge checks the bound over every interval.

mod envoy;
mod judge;
mod safety;
mod utilisation;
mod world;
