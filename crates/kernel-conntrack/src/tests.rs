mod established;
mod messages;
mod mirror;
