mod messages;
mod mirror;
