// A plugin is made by a function of the test.
#pragma once
#define PLUGINLIB_EXPORT_CLASS(derived, base) \
  base* plugin() { return new derived; }
