// As much of ros2_control and rclcpp as the page on controllers uses, so that its code is compiled and called in tests.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace rclcpp {
class Time {};
class Duration {};
class Parameter {
 public:
  using Value = std::variant<std::vector<std::string>, std::vector<double>>;
  explicit Parameter(Value value) : value_(std::move(value)) {}
  std::vector<std::string> as_string_array() const { return *std::get_if<std::vector<std::string>>(&value_); }
  std::vector<double> as_double_array() const { return *std::get_if<std::vector<double>>(&value_); }

 private:
  Value value_;
};
}  // namespace rclcpp

namespace rclcpp_lifecycle {
class State {};
class LifecycleNode {
 public:
  std::map<std::string, rclcpp::Parameter::Value> parameters;
  rclcpp::Parameter get_parameter(const std::string& name) const { return rclcpp::Parameter(parameters.at(name)); }
};
}  // namespace rclcpp_lifecycle

namespace hardware_interface {
class LoanedStateInterface {
 public:
  double value = 0.0;
  double get_value() const { return value; }
};
class LoanedCommandInterface {
 public:
  double value = 0.0;
  [[nodiscard]] bool set_value(double x) { return value = x, true; }
};
}  // namespace hardware_interface

namespace controller_interface {
enum class return_type { OK, ERROR };
enum class CallbackReturn { SUCCESS, FAILURE, ERROR };
enum class interface_configuration_type { ALL, INDIVIDUAL, NONE };
struct InterfaceConfiguration {
  interface_configuration_type type;
  std::vector<std::string> names;
};
class ControllerInterface {
 public:
  virtual ~ControllerInterface() = default;
  virtual CallbackReturn on_init() = 0;
  virtual CallbackReturn on_configure(const rclcpp_lifecycle::State&) { return CallbackReturn::SUCCESS; }
  virtual InterfaceConfiguration command_interface_configuration() const = 0;
  virtual InterfaceConfiguration state_interface_configuration() const = 0;
  virtual return_type update(const rclcpp::Time&, const rclcpp::Duration&) = 0;
  std::shared_ptr<rclcpp_lifecycle::LifecycleNode> get_node() { return node_; }
  std::vector<hardware_interface::LoanedCommandInterface> command_interfaces_;
  std::vector<hardware_interface::LoanedStateInterface> state_interfaces_;

 protected:
  template <class T>
  void auto_declare(const std::string& name, const T& value) {
    node_->parameters.emplace(name, value);
  }

 private:
  std::shared_ptr<rclcpp_lifecycle::LifecycleNode> node_ = std::make_shared<rclcpp_lifecycle::LifecycleNode>();
};
}  // namespace controller_interface
